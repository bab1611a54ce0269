"""Which of several failed ranks is to blame."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lwcc.launcher.mpicrew import LAUNCHER
from lwcc.launcher.spawn import Rank

# As Python says it, and as the core does within the words of a framework.
_OF_ANOTHER = re.compile(r"PeerLost: |ShutDown: rank |rank \d+ (\(host \S+ pid \d+\) )?(has left|is gone)")


def order(rank: Rank) -> tuple[bool, bool, bool, bool, int]:
    """Order of several ranks that ended in the same instant.

    A signal is a cause; who was stopped, or ended with an MPI's launcher, is none; that launcher only reports.
    """
    return (rank.stopped_by_us, rank.rank == LAUNCHER, _consequence(rank), (rank.status or 0) > 0, rank.rank)


def find_cause(failed: Rank, ranks: Sequence[Rank]) -> Rank:
    """Blame who failed by itself, also if a rank that failed because of it was gone sooner."""
    if failed.rank != LAUNCHER and not _consequence(failed):
        return failed
    causes = [r for r in ranks if r.status and not r.stopped_by_us and not _consequence(r)]
    return min(causes, key=lambda r: r.died or 0.0) if causes else failed


def _consequence(rank: Rank) -> bool:
    """Tell whether the rank's last lines say that it failed because another rank had gone."""
    return any(_OF_ANOTHER.search(line) for line in rank.err.tail())
