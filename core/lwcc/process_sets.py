"""Process sets: collectives among some of the ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Callable, Optional, Union

from lwcc import context, errors, naming, rendezvous
from lwcc._native import ffi, lib

if TYPE_CHECKING:
    from lwcc.authoring import Choice


class ProcessSet:
    """A set of ranks; in use once it was given to `add_process_set` (or to `init`) on every rank.

    Attributes:
        ranks: the global ranks, ascending; None for the global set before init.
        process_set_id: its number, or None while it is not in use. 0 is the global set.
        algorithm: what its calls use (`lwcc.use`), from when it comes into use.
    """

    def __init__(self, ranks: Optional[Iterable[int]], algorithm: Optional[Choice] = None) -> None:
        self.algorithm = algorithm
        self._ranks = None if ranks is None else sorted(int(r) for r in ranks)
        self.process_set_id: Optional[int] = None
        self._epoch: Optional[int] = None

    @property
    def ranks(self) -> Optional[list[int]]:
        """The global ranks, ascending."""
        if self._ranks is None and context.is_initialized():
            return list(range(context.size()))
        return self._ranks

    def _in_use(self) -> bool:
        return context.is_initialized() and self.process_set_id is not None

    def size(self) -> Optional[int]:
        """Return the number of ranks in the set, or None if it is not in use."""
        ranks = self.ranks
        return len(ranks) if ranks is not None and self._in_use() else None

    def rank(self) -> Optional[int]:
        """Return this process's index in the set, -1 if it is no member, None if the set is not in use."""
        ranks = self.ranks
        if ranks is None or not self._in_use():
            return None
        me = context.rank()
        return ranks.index(me) if me in ranks else -1

    def included(self) -> bool:
        """Tell whether this process is a member; ValueError if the set is not in use."""
        index = self.rank()
        if index is None:
            raise ValueError(f"lwcc: {self!r} is not in use; call add_process_set first, on every rank")
        return index >= 0

    def __repr__(self) -> str:
        return f"ProcessSet(ranks={self.ranks}, id={self.process_set_id})"


global_process_set = ProcessSet(None)
global_process_set.process_set_id = 0

_added: dict[int, ProcessSet] = {}


def members_of(number: int) -> list[int]:
    """Return the global ranks of a set by its number; ValueError if it is not in use."""
    process_set = global_process_set if number == 0 else _added.get(number)
    ranks = None if process_set is None else process_set.ranks
    if ranks is None:
        raise ValueError(f"lwcc: there is no process set {number}, or lwcc is not initialised")
    return ranks


def _wishes(ranks: list[int]) -> errors.Mismatch:
    """Return the error that says which ranks asked for which set; collective over all ranks, which disagree."""
    from lwcc.objects import allgather_object

    asking: dict[tuple[int, ...], list[str]] = {}
    for rank, wish in enumerate(allgather_object(tuple(ranks), name="lwcc.set_wishes")):
        asking.setdefault(wish, []).append(str(rank))
    said = (f"rank {', '.join(who)} {'asks' if len(who) == 1 else 'ask'} for {list(w)}" for w, who in asking.items())
    return errors.Mismatch(f"lwcc: process set: the ranks disagree: {'; '.join(said)}", lib.LWCC_ERR_MISMATCH)


def add_process_set(process_set: Union[ProcessSet, Iterable[int]], algorithm: Optional[Choice] = None) -> ProcessSet:
    """Bring a set into use. Collective over all ranks, with the same ranks; return the set.

    Args:
        process_set: a `ProcessSet`, or the global ranks.
        algorithm: what its calls use, see `lwcc.use`; default its own, LWCC_ALGORITHM's, or selected.

    Raises:
        ValueError: a set of these ranks is in use already, or a rank is out of range or named twice.
        Mismatch: the ranks disagree.
    """
    wanted = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    ranks, everybody = wanted.ranks or [], context.size()
    if wanted.process_set_id is not None:
        raise ValueError(f"lwcc: {wanted!r} is in use already")
    if not ranks or len(set(ranks)) != len(ranks) or ranks[0] < 0 or ranks[-1] >= everybody:
        raise ValueError(f"lwcc: process set {ranks}: need different ranks of 0..{everybody - 1}, at least one")
    if any(other.ranks == ranks for other in (global_process_set, *_added.values())):
        raise ValueError(f"lwcc: a process set of the ranks {ranks} is in use already")
    number = ffi.new("int32_t *")
    status = lib.lwcc_set_add(ffi.new("int32_t[]", ranks), len(ranks), number)
    if status < 0:
        failure = context.failure(status)
        raise _wishes(ranks) if isinstance(failure, errors.Mismatch) else failure
    _use(wanted, number[0])
    _apply_algorithm(wanted, algorithm or wanted.algorithm)
    return wanted


def _use(wanted: ProcessSet, number: int) -> ProcessSet:
    if not _added:
        context.at_shutdown(_forget_all)
    naming.forget(number)
    wanted.process_set_id = number
    _added[number] = wanted
    return wanted


def set_of_members(
    ranks: Iterable[int], store: rendezvous.Store, number: Callable[[], int], timeout: float
) -> ProcessSet:
    """Return the set of these ranks, made by its members alone if it is not in use yet. Collective over the members.

    Args:
        ranks: global ranks, this one among them.
        store: that the members share, and where the names "set/..." are theirs.
        number: gives 0, 1, 2, ..., another each time in the whole job; called on the first member.
        timeout: seconds to wait for the other members.

    Raises:
        Timeout: naming the members that did not come.
        LwccError: a member cannot take part; the text says why.
    """
    wanted = ProcessSet(ranks)
    members = wanted.ranks or []
    for other in (global_process_set, *_added.values()):
        if other.ranks == members:
            return other
    me, listed = context.rank(), ffi.new("int32_t[]", members)
    deadline = time.monotonic() + timeout
    if me == members[0]:
        text = ffi.new("char[128]")
        made = lib.lwcc_set_offer(listed, len(members), text, 128)
        if made < 0:
            raise context.failure(made)
        store.set("set/offer", b"%d %s" % (lib.LWCC_SETS_OWN + number(), ffi.string(text)))
    said = _from_member(store, "set/offer", members[0], deadline).split(b" ", 1)
    status = lib.lwcc_set_accept(int(said[0]), listed, len(members), said[1])
    failure = context.failure(status) if status < 0 else None
    store.set(f"set/accepted/{me}", str(failure).encode() if failure else b"")
    for rank in members:
        trouble = _from_member(store, f"set/accepted/{rank}", rank, deadline).decode()
        if trouble:
            raise failure or errors.LwccError(f"lwcc: process set {members}: rank {rank}: {trouble}")
    return _use(wanted, int(said[0]))


def _from_member(store: rendezvous.Store, key: str, rank: int, deadline: float) -> bytes:
    try:
        return store.get(key, max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        raise errors.Timeout(f"lwcc: rank {context.rank()} waited for rank {rank} to make a process set") from None


def _apply_algorithm(process_set: ProcessSet, algorithm: Optional[Choice]) -> None:
    if not process_set.included() or not (algorithm or os.environ.get("LWCC_ALGORITHM")):
        return
    from lwcc import choosing

    choosing.apply_environment(process_set.process_set_id or 0)
    if algorithm:
        choosing.use(algorithm, process_set=process_set)


def remove_process_set(process_set: ProcessSet) -> bool:
    """Take a set out of use. Collective over all ranks. Return False if it is not in use, or is the global set."""
    number = process_set.process_set_id
    if number is None or number == 0:
        return False
    status = lib.lwcc_set_remove(number)
    if status < 0:
        raise context.failure(status)
    process_set.process_set_id = None
    _added.pop(number, None)
    return True


def _forget_all() -> None:
    for process_set in _added.values():
        process_set.process_set_id = None
    _added.clear()
