"""Names of calls that were given none: the ranks of a set pair these up by issuing them in one order."""

from __future__ import annotations

import itertools
from typing import Any

from lwcc import context

COLLECTIVE_NAMES = ("allreduce", "broadcast", "allgather", "reducescatter", "alltoall", "barrier")

_counters: dict[tuple[int, int, int], Any] = {}  # (epoch, process set, collective) -> unnamed calls so far
_joins: dict[tuple[int, int], int] = {}  # (epoch, process set) -> joins so far


def unnamed(collective: int, process_set: int = 0) -> str:
    """Return the next "<collective>.noname.<n>" of a set."""
    key = (context.epoch(), process_set, collective)
    number = next(_counters.setdefault(key, itertools.count()))
    return f"{COLLECTIVE_NAMES[collective]}.noname.{joins_of(process_set)}{number}"


def forget(process_set: int) -> None:
    """Count a set's unnamed calls from 0 again: its number has a new meaning. Drop those of earlier worlds."""
    now = context.epoch()
    for key in list(_counters):
        if key[0] != now or key[1] == process_set:
            del _counters[key]
    for world in list(_joins):
        if world[0] != now or world[1] == process_set:
            del _joins[world]


def count_join(process_set: int) -> None:
    """Count a set's unnamed calls anew, under other names: all have joined, after calls that some did not make."""
    world = context.epoch(), process_set
    _joins[world] = _joins.get(world, 0) + 1
    for key in list(_counters):
        if key[1] == process_set:
            del _counters[key]


def joins_of(process_set: int) -> str:
    """Return what tells the unnamed calls after the set's latest join from those before: "" if there was none."""
    joins = _joins.get((context.epoch(), process_set)) if _joins else None
    return f"join{joins}." if joins else ""
