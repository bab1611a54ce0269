"""Better, worse or noise: what repeated measurements of two things allow to say."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LEAST = 3  # measurements of each
MARGIN = 0.05  # smaller differences are not claimed, however often they are seen


class Standing(NamedTuple):
    """How something stands among others: "better", "worse" or "noise"; theirs / ours; and whose."""

    said: str
    ratio: float
    other: str

    def text(self) -> str:
        """The gain or the loss, where there is one to claim."""
        shown = {"better": f"{self.ratio:.2f}x faster", "worse": f"{1 / self.ratio:.2f}x slower"}
        return shown.get(self.said, "-")


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


def compare_rates(ours: Sequence[float], theirs: Sequence[float]) -> tuple[str, float]:
    """Compare rates (more is better) by the same rule; "better" and a ratio above 1 speak for ours."""
    return compare(theirs, ours)


def among(found: Mapping[str, tuple[str, float]]) -> Standing:
    """Put together what the comparisons with each of the others have said; there must be one.

    Returns:
        "better" where it is better than every other one, "worse" where one of them is better, else "noise"; against the
        best of the others, or where the best of them only seems to be better, against the best of those that are.
    """
    said = {of for of, _ in found.values()}
    verdict = "worse" if "worse" in said else "better" if said == {"better"} else "noise"
    rivals = {name: ratio for name, (of, ratio) in found.items() if of == verdict or verdict == "noise"}
    name = min(rivals, key=lambda rival: rivals[rival])
    return Standing(verdict, rivals[name], name)
