"""What lwccrun says when a job fails: the first failure, at most 15 lines. Pure text."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from lwcc.launcher.mpicrew import LAUNCHER
from lwcc.launcher.spawn import Rank

MAX_LINES = 15
_TAIL_LINES = 9
_CONSEQUENCES = ("lwcc.errors.ShutDown", "lwcc.errors.PeerLost")
_MAX_COLUMNS = 200


def first_failure(failed: Rank, ranks: Sequence[Rank], log_dir: str | None) -> str:
    """The report. failed: the first rank that failed; ranks: all, ended."""
    when = (failed.died or failed.born) - failed.born
    name = f"rank {failed.rank}" if failed.rank != LAUNCHER else "the MPI's launcher"
    lines = [f"lwccrun: {name} failed: {failed.how} after {when:.1f} s (host {failed.host}, pid {failed.pid})"]
    tail = _interesting(failed.err.tail())
    lines += ["  " + line[:_MAX_COLUMNS] for line in tail] if tail else ["  (it wrote nothing to stderr)"]
    if not failed.lost and failed.status == -signal.SIGKILL and not failed.stopped_by_us:
        lines.append("  hint: lwccrun did not send this SIGKILL. Out of memory? See `dmesg | grep -i oom`")
    others = _others(failed, ranks)
    if others:
        lines.append("lwccrun: " + others)
    if log_dir is not None:
        lines.append(f"lwccrun: full output in {log_dir}")
    return "\n".join(lines[:MAX_LINES]) + "\n"


def missing_ranks(ranks: Sequence[Rank], started: set[int], limit: float) -> str:
    """The start time limit has passed: who has called init, and who has not."""
    missing = [r for r in ranks if r.rank not in started and r.died is None]
    lines = [f"lwccrun: {len(missing)} of {len(ranks)} ranks did not call lwcc.init within {limit:g} s:"]
    shown = missing[: MAX_LINES - 3]
    for rank in shown:
        last = next((line for line in reversed(rank.err.tail()) if line.strip()), "")
        note = f", last on stderr: {last[:100]}" if last else ""
        lines.append(f"  rank {rank.rank} (host {rank.host}, pid {rank.pid}){note}")
    if len(shown) < len(missing):
        lines.append(f"  and {len(missing) - len(shown)} more")
    return "\n".join(lines) + "\n"


def rank_list(numbers: Sequence[int]) -> str:
    """Ranks in short: 0-3, 7."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _interesting(tail: Sequence[str]) -> list[str]:
    """The last lines; of a Python traceback the last frame and the exception.

    Of several, as an MPI's launcher mixes them, the last that is not about the end of another rank.
    """
    lines = [line.rstrip() for line in tail if line.strip()]
    starts = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    traces = [lines[a:b] for a, b in zip(starts, [*starts[1:], len(lines)])]
    causes = [trace for trace in traces if not any(line.startswith(_CONSEQUENCES) for line in trace)]
    if traces:
        lines = (causes or traces)[-1]
        frames = [i for i, line in enumerate(lines) if line.startswith('  File "')]
        lines = lines[frames[-1] if frames else 0 :]
    return lines[-_TAIL_LINES:]


def _others(failed: Rank, ranks: Sequence[Rank]) -> str:
    stopped = [r.rank for r in ranks if r is not failed and r.stopped_by_us]
    raised = [r.rank for r in ranks if r is not failed and not r.stopped_by_us and r.status != 0]
    fine = [r.rank for r in ranks if r is not failed and not r.stopped_by_us and r.status == 0]
    parts = []
    if stopped:
        parts.append(f"{len(stopped)} other{'s'[: len(stopped) != 1]} stopped by lwccrun (rank {rank_list(stopped)})")
    if raised:
        parts.append(f"{len(raised)} failed after it by themselves (rank {rank_list(raised)})")
    if fine:
        parts.append(f"{len(fine)} ended well (rank {rank_list(fine)})")
    return ", ".join(parts)
