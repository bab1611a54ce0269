"""What a rank writes down for `lwccrun --baseline`: the time of each training step, and the counters at the end.

Off, and free, unless LWCC_JOURNAL names a folder.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

_STEPS_MOST = 200_000


class _Journal:
    """One rank's steps: (end of the step in ns, waited_ns, busy_ns)."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.steps: list[tuple[int, int, int]] = []


_journal: list[_Journal] = []  # none, or the one of this job


def begin() -> None:
    """Start, if LWCC_JOURNAL is set. Called by init."""
    folder = os.environ.get("LWCC_JOURNAL", "")
    _journal[:] = [_Journal(folder)] if folder else []


def step() -> None:
    """A training step has ended. Called by the adapters; scripts without an optimizer of ours may call it too."""
    if _journal and len(_journal[0].steps) < _STEPS_MOST:
        from lwcc.inspection import stats

        now = stats()
        _journal[0].steps.append((time.monotonic_ns(), now["waited_ns"], now["busy_ns"]))


def end(world: Any) -> None:
    """Write LWCC_JOURNAL/rank-R.json. Called by shutdown while the counters are still there."""
    if not _journal:
        return
    from lwcc.inspection import stats

    journal = _journal.pop()
    os.makedirs(journal.folder, exist_ok=True)
    path = os.path.join(journal.folder, f"rank-{world.rank}.json")
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump({"rank": world.rank, "size": world.size, "stats": stats(), "steps": journal.steps}, file)
    os.replace(path + ".part", path)
