"""What one run of a script on one engine has shown: its own output, and the journals of its ranks. Only reads."""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_SPEED = re.compile(
    _NUMBER + r"\s*(?:samples|images|imgs?|examples|sequences|tokens|bytes)\s*(?:/|per)\s*s(?:ec(?:ond)?)?\b", re.I
)
_SPEED_BEFORE = re.compile(r"(?:samples|images|imgs?|examples)\s*/\s*s(?:ec)?\w*[:= ]+" + _NUMBER, re.I)
_TOTAL = re.compile(r"\btotal\s+\w+\s*/\s*s(?:ec)?\b[^:\n]*:\s*" + _NUMBER, re.I)
_LOSS = re.compile(r"\bloss[:= ]+" + _NUMBER + "|" + _NUMBER + r" bits per byte\b", re.I)
_ACCURACY = re.compile(r"\bacc(?:uracy)?[:= ]+" + _NUMBER, re.I)


@dataclass
class Run:
    """One run. Times in seconds; None: the script or the adapter did not say. Communication: of rank 0."""

    variant: str
    code: int
    seconds: float
    samples_per_s: float | None = None
    step_s: list[float] = field(default_factory=list)  # each step: the longest over the ranks
    exposed_s: float | None = None
    communication_s: float | None = None
    nbytes: int | None = None
    allreduces: list[int] = field(default_factory=list)  # by log2 of the bytes
    losses: list[float] = field(default_factory=list)
    accuracy: float | None = None
    engine: int | None = None
    loss_at_s: list[float] = field(default_factory=list)  # when each loss was printed, from the start of the job
    ranks: list[dict[str, float]] = field(default_factory=list)  # rank, exposed_s, communication_s, and means of a step

    def told(self) -> bool:
        """Is there anything to compare? A script that missed its target has still run."""
        return self.samples_per_s is not None or bool(self.step_s) or bool(self.losses)

    def step_median(self) -> float | None:
        """The median step."""
        return statistics.median(self.step_s) if self.step_s else None

    def step_p90(self) -> float | None:
        """The 90th percentile of the steps."""
        return sorted(self.step_s)[int(0.9 * (len(self.step_s) - 1))] if self.step_s else None

    def as_record(self) -> dict[str, Any]:
        """For run.json."""
        return {**asdict(self), "step_median_s": self.step_median(), "step_p90_s": self.step_p90()}


def read_output(run: Run, text: str, stamps: Sequence[float] = ()) -> None:
    """Take speed, losses and accuracy from what the script printed; stamps: when each line came."""
    totals = [float(m) for m in _TOTAL.findall(text)]
    speeds = totals or [float(m) for m in _SPEED.findall(text)] or [float(m) for m in _SPEED_BEFORE.findall(text)]
    run.samples_per_s = speeds[-1] if speeds else None
    found = list(_LOSS.finditer(text))
    run.losses = [float(match[1] or match[2]) for match in found]
    lines = [text.count("\n", 0, match.start()) for match in found]
    run.loss_at_s = [stamps[line] for line in lines] if lines and lines[-1] < len(stamps) else []
    accuracies = [float(m) for m in _ACCURACY.findall(text)]
    run.accuracy = accuracies[-1] if accuracies else None


def read_stamps(log: str) -> list[float]:
    """The times of a log's lines; none if they were not kept."""
    try:
        with open(os.path.splitext(log)[0] + ".times", encoding="ascii") as file:
            return [float(line) for line in file]
    except (OSError, ValueError):
        return []


def read_journals(run: Run, folder: str) -> None:
    """Take steps and counters from the ranks' journals, if they wrote any; say which files are none, and skip them."""
    journals = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if name.startswith("rank-") and name.endswith(".json"):
            path = os.path.join(folder, name)
            try:
                journals.append(_read_journal(path))
            except (OSError, ValueError) as error:
                print(f"lwccrun: {path} is no journal of a rank, and is left out: {error}", file=sys.stderr, flush=True)
    if not journals:
        return
    first = min(journals, key=lambda journal: int(journal["rank"]))
    stats = first["stats"]
    run.exposed_s, run.communication_s = stats["waited_ns"] / 1e9, stats["busy_ns"] / 1e9
    run.nbytes, run.allreduces, run.engine = stats["bytes"], stats["allreduces"], stats["engine"]
    run.ranks = [_of_rank(journal) for journal in sorted(journals, key=lambda journal: int(journal["rank"]))]
    spans = [[(b[0] - a[0]) / 1e9 for a, b in zip(j["steps"], j["steps"][1:])] for j in journals]
    run.step_s = [max(step) for step in zip(*spans)]


def _read_journal(path: str) -> dict[str, Any]:
    """One rank's journal. Raises OSError, or ValueError where anything that is used later is missing or no number."""
    with open(path, encoding="utf-8") as file:
        journal = json.load(file)
    try:
        stats, steps = journal["stats"], journal["steps"]
        numbers = [journal["rank"], *(stats[key] for key in ("waited_ns", "busy_ns", "bytes", "engine"))]
        numbers += [*stats["allreduces"], *(number for step in steps for number in step)]
        if not all(isinstance(n, int) for n in numbers) or any(len(step) != 3 for step in steps):
            raise TypeError("not of numbers")
    except (KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__} {error}") from None
    return {"rank": journal["rank"], "stats": stats, "steps": steps}


def _of_rank(journal: dict[str, Any]) -> dict[str, float]:
    """One rank: waited and communicated in all, and in the mean step."""
    stats, steps = journal["stats"], journal["steps"]
    found = {"rank": journal["rank"], "exposed_s": stats["waited_ns"] / 1e9, "communication_s": stats["busy_ns"] / 1e9}
    if len(steps) > 1:
        mean = [(last - first) / 1e9 / (len(steps) - 1) for first, last in zip(steps[0], steps[-1])]
        found.update(step_s=mean[0], step_waited_s=mean[1], step_communication_s=mean[2])
    return found


def agreement(ours: list[float], theirs: list[float]) -> tuple[str, float | None]:
    """Do two runs' losses agree? Returns the verdict and the largest relative difference."""
    if not ours or len(ours) != len(theirs):
        return ("no losses to compare" if not ours and not theirs else "different numbers of losses"), None
    worst = max(abs(a - b) / max(abs(a), abs(b), 1e-12) for a, b in zip(ours, theirs))
    if worst == 0:
        return "identical as printed", 0.0
    return ("agree within fp32 rounding" if worst <= 1e-3 else "differ"), worst


def histogram(counts: list[int]) -> str:
    """The allreduces by size: "26 x 1.0 KiB, 3 x 4.0 MiB", sizes being upper bounds."""
    found = [f"{n} x {size_text(1 << k)}" for k, n in enumerate(counts) if n]
    return ", ".join(found) if found else "none"


def script_of(command: Sequence[str]) -> str:
    """Return the name by which a reader knows a command: its script's, also behind an interpreter."""
    return os.path.basename(next((word for word in command if word.endswith(".py")), command[0]))


def size_text(nbytes: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            return f"{nbytes:.0f} {unit}" if unit == "B" or nbytes >= 100 else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return ""
