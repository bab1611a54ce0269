"""Better, worse or noise: what repeated measurements of two things allow to say."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

LEAST = 3  # measurements of each
MARGIN = 0.05  # smaller differences are not claimed, however often they are seen


def compare(ours: Sequence[float], theirs: Sequence[float]) -> tuple[str, float]:
    """Compare times (shorter is better).

    Returns:
        "better", "worse" or "noise", and theirs / ours by the medians. A claim needs LEAST measurements of each whose
        ranges do not touch, and medians that differ by more than MARGIN.
    """
    ratio = statistics.median(theirs) / statistics.median(ours)
    if min(len(ours), len(theirs)) < LEAST or 1 / (1 + MARGIN) <= ratio <= 1 + MARGIN:
        return "noise", ratio
    if max(ours) < min(theirs):
        return "better", ratio
    if min(ours) > max(theirs):
        return "worse", ratio
    return "noise", ratio
