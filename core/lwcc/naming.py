"""Names for calls without one."""

from __future__ import annotations

import itertools
from typing import Any

from lwcc import context
from lwcc.plan import COLLECTIVES

_counters: dict[tuple[int, int, int], Any] = {}  # (epoch, process set, collective) -> unnamed calls so far


def unnamed(collective: int, process_set: int = 0) -> str:
    """Return the next "<collective>.noname.<n>" of a set; its ranks have to issue their unnamed calls in one order."""
    key = (context.epoch(), process_set, collective)
    return f"{COLLECTIVES[collective]}.noname.{next(_counters.setdefault(key, itertools.count()))}"


def forget_unnamed(process_set: int) -> None:
    """Count a set's unnamed calls from 0 again: its number has a new meaning. Drop those of earlier worlds."""
    now = context.epoch()
    for key in list(_counters):
        if key[0] != now or key[1] == process_set:
            del _counters[key]
