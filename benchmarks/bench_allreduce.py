"""One host: LWCC beside the MPIs that are installed, interleaved, with checked results.

    BENCH_OPENMPI=prefix BENCH_MPICH=prefix BENCH_IMPI=prefix python benchmarks/bench_allreduce.py --np 2
Each round runs every subject once, in turn; a figure is the median over rounds of the median over iterations of the
maximum over ranks. Rows whose core-to-core latency differs ("near" below 70 ns, else "far") are kept apart.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import peers

SIZES = "4,64,1k,4k,16k,64k,256k,1m,4m,16m,25m,64m,97.5m,256m"
NEAR_NS = 70


def run(subject: peers.Subject, folder: Path, limit: float) -> list[list[str]]:
    """Run one subject once; return its rows. A failure is printed and gives none."""
    board = folder / "board"
    board.unlink(missing_ok=True)
    command = [part.replace("{board}", str(board)) for part in subject.command]
    try:
        done = subprocess.run(
            command, env={**os.environ, **subject.env}, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"# {subject.label}: no result within {limit:.0f} s", file=sys.stderr)
        return []
    if done.returncode:
        print(f"# {subject.label}: exit {done.returncode}: {done.stderr[-300:]}", file=sys.stderr)
    return [row for row in csv.reader(done.stdout.splitlines()) if len(row) == 12]


def regime(row: list[str]) -> str:
    """Near or far, by the probes before and after."""
    before, after = float(row[10]), float(row[11])
    return "near" if max(before, after) < NEAR_NS else "far" if min(before, after) >= NEAR_NS else "mixed"


def table(rows: list[list[str]], out: Path | None) -> None:
    """Print medians with spread, and the ratio of the best peer to each of LWCC's ways."""
    cells: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row[9] != "0":
            print(f"# WRONG RESULT: {row}", file=sys.stderr)
        else:
            cells[regime(row), int(row[3])][row[0]].append(float(row[5]))
    labels = sorted({row[0] for row in rows}, key=lambda n: (not n.startswith("lwcc"), n))
    lines = ["| bytes | | " + " | ".join(labels) + " | best peer / lwcc |", "|---|---|" + "---|" * (len(labels) + 1)]
    for (kind, nbytes), by_label in sorted(cells.items()):
        middle = {n: statistics.median(v) for n, v in by_label.items()}
        others = [v for n, v in middle.items() if not n.startswith("lwcc")]
        ours = {n: v for n, v in middle.items() if n.startswith("lwcc")}
        ratios = [f"{n[5:]} {min(others) / v:.2f}" for n, v in sorted(ours.items())] if others else []
        texts = [
            f"{middle[n]:.2f} ({min(by_label[n]):.2f}-{max(by_label[n]):.2f})" if n in middle else "-" for n in labels
        ]
        lines.append(f"| {nbytes} | {kind} | " + " | ".join(texts) + f" | {', '.join(ratios)} |")
    text = "\n".join(lines)
    print(text)
    if out:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, {cpu_name()}"
        out.write_text(f"Machine: {machine}. Microseconds, median (min-max over rounds).\n\n{text}\n")


def cpu_name() -> str:
    """The processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown processor"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--np", type=int, default=2)
    parser.add_argument("--collective", choices=peers.COLLECTIVES, default="allreduce")
    parser.add_argument("--sizes", default=SIZES, help="bytes per rank, comma separated, suffixes k and m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=0.1, help="seconds per size")
    parser.add_argument(
        "--ways", default="raw-private,raw-registered", help="of raw|named|outstanding - private|registered"
    )
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--no-pin", action="store_true")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one subject of one round")
    parser.add_argument("--out", type=Path, help="write the table to this file")
    a = parser.parse_args()
    series = peers.Series(a.np, a.collective, a.sizes, a.budget, not a.no_pin)
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        peers.build(folder)
        subjects = [peers.lwcc(folder, series, way) for way in a.ways.split(",")]
        if not a.no_peers:
            subjects += peers.peers(folder, series)
        for _ in range(a.rounds):
            for subject in subjects:
                rows += run(subject, folder, a.limit)
    table(rows, a.out)
    return int(any(row[9] != "0" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
