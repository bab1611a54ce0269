"""Algorithms written in Python: the decorator, the ways to find one, and their way into the core.

    @lwcc.algorithm("allreduce", min_ranks=2)
    def my_ring(plan, rank, size):
        for k in plan.rounds(size - 1):
            plan.send((rank + 1) % size, chunk=rank - k)
            plan.recv_reduce((rank - 1) % size, chunk=rank - k - 1)
        ...

The function runs on the caller's thread, once for each rank of a number of ranks; the plans of all ranks are proved
together and handed to the core, under a name that ends with their fingerprint. The engine never calls Python.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import operator
import os
import sys
import unicodedata
from collections.abc import Sequence
from types import FunctionType
from typing import Any, Callable, NamedTuple, Optional, Union

from lwcc import loading, patience
from lwcc.errors import LwccError, PlanRefused, Unsupported
from lwcc.plan import BLOCKS, COLLECTIVES, Plan, Topology

Builder = Callable[[Plan, int, int], None]
Chunks = Union[int, Callable[[int], int], None]
ENTRY_POINTS = "lwcc.algorithms"
_NAME_LIMIT = 44  # bytes
_PATIENCE_S = 10  # for one rank's plan, which takes milliseconds

_known: dict[tuple[str, str], Algorithm] = {}  # (collective, name): the latest of that name


class Needs(NamedTuple):
    """What an algorithm asks of the ranks."""

    min_ranks: int = 2
    power_of_two: bool = False
    min_ranks_per_node: int = 1

    def unmet(self, size: int, topology: Topology) -> str:
        """Return what `size` ranks lack, or ""."""
        if size < self.min_ranks:
            return f"at least {self.min_ranks} ranks"
        if self.power_of_two and size & (size - 1):
            return "a power of two"
        if self.min_ranks_per_node > 1:
            topology.asked = True
            if min(len(topology.members(node)) for node in range(topology.nodes)) < self.min_ranks_per_node:
                return f"at least {self.min_ranks_per_node} ranks on each node"
        return ""

    def text(self) -> str:
        """Return the conditions for people."""
        parts = [f"p >= {self.min_ranks}"] if self.min_ranks > 2 else []
        parts += ["p = 2^k"] if self.power_of_two else []
        parts += [f"{self.min_ranks_per_node} or more ranks per node"] if self.min_ranks_per_node > 1 else []
        return ", ".join(parts) or "any p"


class Algorithm:
    """An algorithm for one collective. Called with a plan it writes its steps into that, to be a part of another one.

    Attributes:
        collective: "allreduce" and so on.
        name: the function's.
        about: first line of its docstring.
        needs: what it asks of the ranks.
    """

    def __init__(self, collective: str, build: Builder, chunks: Chunks, needs: Needs) -> None:
        if (
            not isinstance(build, FunctionType)
            or inspect.isgeneratorfunction(build)
            or inspect.iscoroutinefunction(build)
        ):
            raise ValueError(f"lwcc: {build!r} is no plain function (plan, rank, size) without yield and async")
        self.collective, self.needs = collective, needs
        self.name = build.__name__.encode()[:_NAME_LIMIT].decode(errors="ignore")
        self.about = (build.__doc__ or "").strip().split("\n")[0]
        self.file, self._line = build.__code__.co_filename, build.__code__.co_firstlineno
        self._build, self._chunks = build, chunks
        if chunks is not None and collective in BLOCKS:
            raise ValueError(f"lwcc: {self.name}: the chunks of {collective} are the ranks' blocks; leave out chunks=")
        self._native: dict[tuple[int, Any], str] = {}

    def __call__(self, plan: Plan, rank: int, size: int) -> None:
        """Write the steps into `plan`, as a part of what else it has."""
        self._build(plan, rank, size)

    def chunks(self, size: int) -> int:
        """Return into how many chunks it cuts the buffer for `size` ranks; PlanRefused if it does not know."""
        try:
            wished = self._chunks(size) if callable(self._chunks) else self._chunks
            count = size if wished is None else operator.index(wished)
        except (Exception, SystemExit) as error:
            raise PlanRefused(f"{self.name}: chunks= for {size} ranks: {self._cause(error)}") from error
        if count < 1:
            raise PlanRefused(f"{self.name}: chunks= gives {count} for {size} ranks, expected 1 or more")
        return count

    def plan(self, rank: int, size: int, topology: Optional[Topology] = None) -> Plan:
        """Return one rank's plan, not yet proved; `topology` defaults to one node.

        Raises:
            Unsupported: it does not serve these ranks.
            PlanRefused: a verb's arguments are wrong, or the function failed; the text has file and line.
        """
        place = topology or Topology([0] * size)
        unmet = self.needs.unmet(size, place)
        if unmet:
            raise Unsupported(f"{self.name}: {self.collective} of {size} ranks: this algorithm needs {unmet}")
        plan = Plan(self.collective, rank, size, self.chunks(size), place)
        try:
            with patience.at_most(_PATIENCE_S, f"no plan after {_PATIENCE_S} s; does a loop never end?"):
                self._build(plan, rank, size)
        except LwccError:
            raise
        except (Exception, SystemExit) as error:
            raise PlanRefused(f"{self.name}: rank {rank} of {size}: {self._cause(error)}") from error
        plan.end_round()
        return plan

    def _cause(self, error: BaseException) -> str:
        """Return what went wrong in the author's code; where no line of it is to blame, the function's."""
        text = loading.cause(error, os.path.realpath(self.file))
        return text if "\n  at " in text else f"{text}\n  at {self.file}:{self._line}"

    def plans(self, size: int, topology: Optional[Topology] = None) -> list[Plan]:
        """Return the plans of all ranks; see `plan`."""
        place = topology or Topology([0] * size)
        return [self.plan(rank, size, place) for rank in range(size)]

    def define(self, topology: Topology) -> str:
        """Make it known to the core for these ranks; return the name with the fingerprint. Once for each topology.

        Raises:
            PlanRefused: the proof failed; the text says where, and what is wrong.
            Unsupported: it does not serve these ranks.
        """
        from lwcc import proof

        size = len(topology.node_of)
        for key in ((size, None), (size, topology.node_of)):
            if key in self._native:
                return self._native[key]
        place = Topology(topology.node_of)
        plans = self.plans(size, place)
        name = proof.prove(plans, self.name, self).name
        self._native[size, place.node_of if place.asked else None] = name
        return name

    def __repr__(self) -> str:
        return f"<lwcc.Algorithm {self.collective} {self.name}>"

    def __str__(self) -> str:
        return self.name


class BuiltIn:
    """A built-in algorithm, or a plugin's, seen as an `Algorithm`: its plans come from the core."""

    def __init__(self, collective: str, name: str) -> None:
        from lwcc import inspection

        known = inspection.algorithms(collective)
        if name not in known:
            raise ValueError(f"lwcc: {collective} has no algorithm {name!r}; known: {', '.join(known)}")
        self.collective, self.name, self.about, self.file = collective, name, known[name], ""

    def plan(self, rank: int, size: int, topology: Optional[Topology] = None) -> Plan:
        """Return one rank's plan; Unsupported if it does not serve so many ranks."""
        from lwcc import inspection

        return Plan.decode(inspection.plan_bytes(self.collective, self.name, rank, size))

    def plans(self, size: int, topology: Optional[Topology] = None) -> list[Plan]:
        """Return the plans of all ranks."""
        return [self.plan(rank, size) for rank in range(size)]


AnyAlgorithm = Union[Algorithm, BuiltIn]
Choice = Union[Algorithm, str]  # what `algorithm=` takes


def algorithm(
    collective: str, *, chunks: Chunks = None, min_ranks: int = 2, power_of_two: bool = False,
    min_ranks_per_node: int = 1,
) -> Callable[[Builder], Algorithm]:  # fmt: skip
    """Make an algorithm of a function (plan, rank, size) that writes one rank's plan with the verbs of `lwcc.plan`.

    Args:
        collective: "allreduce", "allgather", "broadcast" (rank 0 is the root), "reducescatter", "alltoall", "barrier".
        chunks: parts of the buffer: a number, or a function of the number of ranks; default one for each rank.
        min_ranks: it serves so many ranks and more.
        power_of_two: it serves 2, 4, 8, ... ranks only.
        min_ranks_per_node: it serves nodes with so many ranks and more.

    Raises:
        ValueError: an unknown collective, chunks where they are the ranks' blocks, a condition that is no number, or
            what is decorated is no plain function.
    """
    if callable(collective):
        raise ValueError('lwcc: @lwcc.algorithm lacks its collective: write @lwcc.algorithm("allreduce")')
    if collective not in COLLECTIVES:
        raise ValueError(f"lwcc: no collective {collective!r}; known: {', '.join(COLLECTIVES)}")
    for what, number in (("min_ranks", min_ranks), ("min_ranks_per_node", min_ranks_per_node)):
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"lwcc: {what}={number!r}: expected a whole number, 1 or more")
    needs = Needs(min_ranks, power_of_two, min_ranks_per_node)

    def make(build: Builder) -> Algorithm:
        made = Algorithm(collective, build, chunks, needs)
        _known[collective, made.name] = made
        return made

    return make


# ---- finding one ----


def find(choice: Union[Algorithm, BuiltIn, str], collective: str = "") -> AnyAlgorithm:
    """Return what a choice means: an algorithm, "file.py:name", "package.module:name", or a name: of a built-in or a
    plugin's, else of one that has been made in Python, else of an entry point in the group "lwcc.algorithms".

    Args:
        choice: what to look for; "allreduce=..." says the collective too.
        collective: its collective, where the name alone does not say it.

    Raises:
        ValueError: there is none, or it serves another collective.
    """
    if not isinstance(choice, (str, Algorithm, BuiltIn)):
        raise ValueError(f"lwcc: {choice!r} is no algorithm: give an @lwcc.algorithm, file.py:NAME, or a name")
    if not isinstance(choice, str):
        if collective and choice.collective != collective:
            raise ValueError(f"lwcc: {choice.name} is an algorithm for {choice.collective}, not for {collective}")
        return choice
    head, equals, rest = choice.partition("=")
    if equals and head in COLLECTIVES:
        return find(rest, head)
    if ":" in choice:
        return find(load(choice), collective)
    if equals:
        raise ValueError(f"lwcc: {choice!r}: no collective {head!r}; known: {', '.join(COLLECTIVES)}")
    wanted = [collective] if collective else COLLECTIVES
    built_in = [where for where in wanted if _is_built_in(where, choice)]
    if len(built_in) > 1:
        raise ValueError(f"lwcc: {choice!r} serves {', '.join(built_in)}: say for which, as {built_in[0]}={choice}")
    if built_in:
        return _built_in(built_in[0], choice)
    found = _in_python(choice, wanted)
    if found is not None:
        return found
    if collective:
        return _built_in(collective, choice)  # says what is known
    raise ValueError(f"lwcc: algorithm {choice!r} is unknown; `lwcc algos` lists the built-in ones")


@functools.lru_cache(maxsize=256)
def _built_in(collective: str, name: str) -> BuiltIn:
    return BuiltIn(collective, name)


def _is_built_in(collective: str, name: str) -> bool:
    from lwcc import inspection

    return name in inspection.algorithms(collective)


def _in_python(choice: str, collectives: Sequence[str]) -> Optional[Algorithm]:
    for where in collectives:
        if (where, choice) in _known:
            return _known[where, choice]
    for entry in _entry_points(choice):
        try:
            made = entry.load()
        except Exception as error:
            text = loading.cause(error, "")
            raise ValueError(f"lwcc: cannot load the entry point {entry.name} = {entry.value}: {text}") from error
        if not isinstance(made, Algorithm):
            raise ValueError(f"lwcc: the entry point {entry.name} = {entry.value} is no @lwcc.algorithm")
        if made.collective in collectives:
            return made
    return None


def _entry_points(name: str) -> Any:
    if sys.version_info >= (3, 10):
        return importlib.metadata.entry_points(group=ENTRY_POINTS, name=name)
    return [e for e in importlib.metadata.entry_points().get(ENTRY_POINTS, ()) if e.name == name]


def load(spec: str) -> Algorithm:
    """Return the algorithm "path/to/file.py:name" or "package.module:name".

    Raises:
        ValueError: no such file, module or name, or the name is no algorithm; the text lists those that there are.
    """
    where, _, name = spec.rpartition(":")
    if not where or not name:
        raise ValueError(f"lwcc: {spec!r}: expected file.py:NAME or package.module:NAME")
    module = loading.module_of(where)
    made = getattr(module, unicodedata.normalize("NFKC", name), None)  # as Python reads names
    if isinstance(made, Algorithm):
        return made
    there = [key for key, value in vars(module).items() if isinstance(value, Algorithm)]
    late = "; it must be made before lwcc.init()" if module is sys.modules.get("__main__") else ""
    raise ValueError(f"lwcc: {where} has no algorithm {name!r}; it has: {', '.join(there) or 'none'}{late}")
