"""Which algorithm a call uses: its own `algorithm=`, what its process set uses, the environment's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Optional, Union

from lwcc import authoring, context, ops
from lwcc._native import ffi, lib
from lwcc.authoring import Algorithm, AnyAlgorithm, Choice
from lwcc.errors import Unsupported
from lwcc.plan import Topology

if TYPE_CHECKING:
    from lwcc.process_sets import ProcessSet

_used: dict[tuple[int, int, str], Optional[str]] = {}  # (epoch, set, collective): what it uses, as the core names it
_plugins: set[str] = set()
_ending: list[bool] = []  # not empty: _forget is registered


def _forget() -> None:
    _used.clear()
    ops.forget_prepared()


def topology(process_set: int = 0) -> Topology:
    """Return which members of a set share a node.

    Raises:
        ValueError: not initialised, or no such set.
    """
    from lwcc.process_sets import members_of

    place = ffi.new("int32_t[2]")
    labels = []
    for rank in members_of(process_set):
        status = lib.lwcc_get_place(rank, place, place + 1)
        if status < 0:
            raise context.failure(status)
        labels.append(int(place[0]))
    return Topology(labels)


def native_name(choice: Union[Choice, AnyAlgorithm], collective: int, process_set: int) -> str:
    """Return the core's name of what `algorithm=` got for a call on a set; Python's algorithms are proved, once.

    Raises:
        ValueError: there is none of that name.
        PlanRefused: the proof failed.
        Unsupported: it does not serve the set's ranks.
    """
    if not _ending:
        context.at_shutdown(_forget)
        _ending.append(True)
    where = topology(process_set)
    found = None if choice == "shm" else authoring.find(choice, ops.COLLECTIVE_NAMES[collective])
    if isinstance(found, Algorithm):
        return found.define(where) if len(where.node_of) > 1 else ""
    return "shm" if found is None else found.name


def use(choice: Optional[Choice], *, collective: str = "", process_set: Optional[ProcessSet] = None) -> Any:
    """From now on use this algorithm for the set's calls that name none, named and raw; None: select again.

    Collective over the set, like a barrier. As `with lwcc.use(my_ring): ...` it holds within the block, whose end is
    collective too.

    Args:
        choice: an `@lwcc.algorithm`, "file.py:name", or the name of a built-in one.
        collective: which one, where the choice does not say it ("ring", or None).
        process_set: default all ranks.

    Raises:
        Mismatch: the ranks gave different algorithms; nothing has changed.
        PlanRefused, Unsupported, ValueError: see `native_name`.
    """
    from lwcc.collectives import set_id

    if choice is None or choice == "shm":
        if not collective:
            raise ValueError(f"lwcc: use({choice!r}): say for which collective=")
        name = collective
    else:
        name = authoring.find(choice, collective).collective
    number = ops.collective_number(name)
    which = set_id(process_set)
    return _restoring(name, which, _set(name, which, native_name(choice, number, which) if choice else None))


def _set(collective: str, process_set: int, name: Optional[str]) -> Optional[str]:
    """Change what a set uses; return what it used."""
    text = ffi.new("char[]", name.encode()) if name else ffi.NULL
    status = lib.lwcc_use(process_set, ops.collective_number(collective), text)
    if status < 0:
        raise context.failure(status)
    key = (context.epoch(), process_set, collective)
    before = _used.get(key)
    _used[key] = name
    return before


@contextlib.contextmanager
def _restore(collective: str, process_set: int, before: Optional[str]) -> Iterator[None]:
    try:
        yield
    finally:
        if context.is_initialized():
            _set(collective, process_set, before)


def _restoring(collective: str, process_set: int, before: Optional[str]) -> Any:
    return _restore(collective, process_set, before)


def load_plugin(path: str) -> None:
    """Load the algorithms of a shared object that `lwcc plugin build` has made; a second time does nothing.

    Raises:
        ValueError: there is no such file, it is no plugin, or it brings a name that is taken.
    """
    real = os.path.realpath(path)
    if real in _plugins:
        return
    status = lib.lwcc_plugin_load(ffi.new("char[]", real.encode()))
    if status < 0:
        raise context.failure(status)
    _plugins.add(real)


def plugins() -> list[str]:
    """Return the paths of those loaded so far."""
    return sorted(_plugins)


def load_plugins_of_environment() -> None:
    """Load what LWCC_PLUGIN lists, separated as in PATH."""
    for path in os.environ.get("LWCC_PLUGIN", "").split(os.pathsep):
        if path:
            load_plugin(path)


def apply_environment(process_set: int) -> None:
    """Have a new set use what LWCC_ALGORITHM says ("allreduce=ring,mine.py:my_bcast"); collective over the set.

    A set other than the world whose ranks an algorithm does not serve goes on selecting. A collective with choices by
    payload ("allreduce=recursive_doubling@16384,allreduce=ring") is left to the core, which reads them at each call.
    """
    load_plugins_of_environment()
    choices = list(filter(None, map(str.strip, os.environ.get("LWCC_ALGORITHM", "").split(","))))
    by_payload = {c.partition("=")[0] for c in choices if c.rpartition("@")[2].isdigit()}
    seen: dict[str, str] = {}
    for choice in choices:
        head, _, rest = choice.partition("=")
        if head in by_payload:
            continue
        found = None if rest == "shm" else authoring.find(choice)
        collective = found.collective if found else head
        number = ops.collective_number(collective)
        if seen.setdefault(collective, choice) != choice:
            raise ValueError(f"lwcc: LWCC_ALGORITHM names two for {collective}: {seen[collective]} and {choice}")
        try:
            name = native_name(found or "shm", number, process_set)
        except Unsupported:
            if process_set == 0:
                raise
            continue
        if name:
            _set(collective, process_set, name)
