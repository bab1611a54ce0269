"""How process groups come by their ranks: the job that all of them share, and a process set for each set of ranks."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from lwcc import context, process_sets, rendezvous

_ABORT = "LWCC_STALL_ABORT"
_TCP_STORE_DEPTH = 8  # stores wrap one another; no more than this


class Members(NamedTuple):
    """The ranks of a group: `ranks` are global, in the group's order; `set_id` is the core's."""

    ranks: tuple[int, ...]
    set_id: int


class _Shared:
    """The job as far as process groups made it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.groups = 0  # alive
        self.ours = False  # the job was started for a group, and ends with the last one


_shared = _Shared()


def enter(options: Any, timeout: float) -> Members:
    """Return the members of a new group, joining the job first if need be. Collective over the members.

    Args:
        options: torch's `_DistributedBackendOptions`.
        timeout: seconds to wait for the other members.

    Raises:
        ValueError: the job that was initialised before has other numbers, or is not there for a part of the ranks.
        Timeout: members did not come; the text names them.
    """
    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    with _shared.lock:
        if context.is_initialized():
            _same_job(options, ranks)
        else:
            _join(options, ranks, timeout)
            _shared.ours = True
        try:
            members = Members(ranks, _set_of(options, ranks, timeout))
        except BaseException:
            _end_if_unused()
            raise
        _shared.groups += 1
    return members


def leave() -> None:
    """Give a group back; the job ends with the last one, if it was started for one."""
    with _shared.lock:
        _shared.groups -= 1
        _end_if_unused()


def _end_if_unused() -> None:
    if _shared.groups == 0 and _shared.ours:
        _shared.ours = False
        context.shutdown()


def _world_of(options: Any, ranks: Sequence[int]) -> tuple[int, int]:
    """Return this process's rank and the number of ranks in torch's default group, which may be in the making."""
    distributed: Any = importlib.import_module("torch.distributed")
    if distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return options.group_rank, options.group_size


def _same_job(options: Any, ranks: Sequence[int]) -> None:
    rank, size = _world_of(options, ranks)
    if (context.rank(), context.size()) != (rank, size):
        raise ValueError(
            f"lwcc: this process is rank {context.rank()} of {context.size()} since lwcc.init(), but rank {rank} of "
            f"{size} in torch.distributed; give both the same numbers, or let init_process_group start LWCC"
        )


def _join(options: Any, ranks: Sequence[int], timeout: float) -> None:
    rank, size = _world_of(options, ranks)
    if len(ranks) != size:
        raise ValueError(
            f'lwcc: new_group(backend="lwcc") for {len(ranks)} of {size} ranks needs a running LWCC: '
            'use init_process_group("lwcc"), or call lwcc.init() on every rank first'
        )
    before = os.environ.get(_ABORT)
    if not before:
        os.environ[_ABORT] = f"{timeout:g}"  # a stalled collective fails when the group's timeout is over
    try:
        if os.environ.get("LWCC_RANK") == str(rank) and os.environ.get("LWCC_SIZE") == str(size):
            context.init(timeout=timeout)
        elif size == 1:
            context.init(rank=0, size=1)
        else:
            host, port = _address(options.store)
            place = rendezvous.Place(rank, size, "store", host, port, source="torch.distributed")
            context.init_at(rendezvous.TorchStore(options.store), place, timeout)
    finally:
        if not before:
            del os.environ[_ABORT]


def _address(store: Any) -> tuple[str, int]:
    """Return where the innermost store listens, which tells the way to the other ranks; ("", 0) if it has no place."""
    for _ in range(_TCP_STORE_DEPTH):
        if hasattr(store, "host"):
            return str(store.host), int(store.port)
        if not hasattr(store, "underlying_store"):
            break
        store = store.underlying_store
    return "", 0


def _set_of(options: Any, ranks: tuple[int, ...], timeout: float) -> int:
    if len(ranks) == context.size():
        return 0
    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
    everybodys = c10d._get_default_store()

    def number() -> int:
        return int(everybodys.add("lwcc/sets", 1)) - 1

    made = process_sets.set_of_members(ranks, rendezvous.TorchStore(options.store), number, timeout)
    return int(made.process_set_id or 0)
