"""Algorithms written in Python beside their built-in twins in C: is there a price?

    lwccrun -np 2 benchmarks/bench_algorithms.py [--budget 0.4] [--out table.md]
One job; in each turn every arm runs once, in a changing order: the twin in C, the Python one, and the twin again (what
two equal things differ by on this machine). A time is the slowest rank's. The figure is the median over turns of the
ratio within a turn, with the interval that holds the true median with 95 %. Results have to be equal bit by bit.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

import lwcc
from lwcc import authoring

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "algorithms"
NAMES = ("ring", "circulant")
NBYTES = (4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20)
ARMS = ("c", "python", "c again")
WARM = 3


def measure(name: str, nbytes: int, budget_s: float) -> tuple[Any, int]:
    """Return times[turn, arm] in seconds, of the slowest rank, and how many turns there were."""
    python = authoring.load(f"{EXAMPLES / name}.py:{name}")
    choices: dict[str, Any] = {"c": name, "python": python, "c again": name}
    start = np.random.default_rng(lwcc.rank()).standard_normal(nbytes // 4).astype(np.float32)
    buffer = lwcc.empty(nbytes // 4, np.float32)
    results, times, order = {}, [], list(ARMS)
    dice = random.Random(nbytes)  # alike on all ranks
    turns = WARM + 1
    while len(times) < turns:
        dice.shuffle(order)
        row = dict.fromkeys(ARMS, 0.0)
        for arm in order:
            buffer[:] = start
            lwcc.raw.barrier()
            begin = time.perf_counter()
            lwcc.allreduce_(buffer, op=lwcc.Sum, name=f"{name} {nbytes} {arm}", algorithm=choices[arm])
            row[arm] = time.perf_counter() - begin
            results.setdefault(arm, buffer.tobytes() if len(times) == 0 else b"")
        times.append([row[arm] for arm in ARMS])
        if len(times) == WARM:
            wanted = np.array([budget_s / max(sum(times[-1]), 1e-6)])
            turns = WARM + int(min(max(lwcc.allreduce(wanted, op=lwcc.Min, name=f"turns {name} {nbytes}")[0], 9), 2000))
    assert len(set(results.values())) == 1, f"{name}, {nbytes} bytes: the bits differ"
    everybody = lwcc.allgather(np.array(times[WARM:])[None], name=f"times {name} {nbytes}")
    return everybody.max(axis=0), len(times) - WARM


def interval(ratios: Any) -> tuple[float, float]:
    """Return order statistics that hold the median with 95 %."""
    ordered, n = np.sort(ratios), len(ratios)
    reach = 0.98 * np.sqrt(n)
    return float(ordered[max(int(n / 2 - reach), 0)]), float(ordered[min(int(n / 2 + reach), n - 1)])


def main() -> int:
    """Measure and print; the exit code is 1 if a Python algorithm is more than 5 % slower beyond doubt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=0.4, help="seconds for each algorithm and size")
    parser.add_argument("--out", type=Path, help="write the table to this file too")
    args = parser.parse_args()
    lwcc.init()
    lines = [
        f"np = {lwcc.size()}",
        "",
        "| algorithm | bytes | C, us | python / C (95 %) | C again / C (95 %) | turns |",
        "|--|--|--|--|--|--|",
    ]
    slower = False
    for name in NAMES:
        for nbytes in NBYTES:
            times, turns = measure(name, nbytes, args.budget)
            cells = []
            for arm in (1, 2):
                ratios = times[:, arm] / times[:, 0]
                low, high = interval(ratios)
                slower |= arm == 1 and low > 1.05
                cells.append(f"{np.median(ratios):.3f} ({low:.3f}-{high:.3f})")
            lines.append(f"| {name} | {nbytes} | {1e6 * np.median(times[:, 0]):.1f} | {' | '.join(cells)} | {turns} |")
    if lwcc.rank() == 0:
        print("\n".join(lines))
        if args.out:
            args.out.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return int(slower)


if __name__ == "__main__":
    raise SystemExit(main())
