"""How well does the simulator meet measurements? Algorithms x sizes on networks of namespaces (as root).

    python benchmarks/bench_simulate.py [--networks 4:none,5:10gbit,8:1gbit,4:100mbit] [--folder build/simulate]
On each network one job times the calibration set of `lwcc simulate --calibrate` (no allreduce among it) and the tested
cells, in turn, round after round. The costs are fitted to the set alone; then the cells are predicted. A network whose
measurements lie in the folder is not measured again (--again), so a run can be made in parts.
The claim: median error under 15 %, and in 90 % of the cells (network, size) the algorithm with the best prediction
takes at most 10 % longer than the fastest. Exit code 1 if it does not hold.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lwcc import calibration, simulating
from lwcc.authoring import find
from lwcc.launcher.measure import size_text

HERE = Path(__file__).resolve().parent
ALGORITHMS = ("ring", "circulant", "recursive_doubling", "halving_doubling", "direct", "fold")
SIZES = tuple(1 << k for k in range(10, 25, 2))
ERROR, NEAR, SHARE = 0.15, 1.10, 0.90


def measure(args: argparse.Namespace, nodes: int, rate: str) -> list[dict[str, Any]]:
    """Run the job of one network; return its rows."""
    slow = rate.endswith("mbit")
    series = calibration.series(nodes, 256 << 10 if slow else 1 << 20)
    cases = [(c, a, n) for c, names, sizes in series for a in names for n in sizes]
    cases += [("allreduce", a, n) for n in SIZES for a in ALGORITHMS]
    words = {"cases": cases, "rounds": 3 if slow else args.rounds, "budget_s": args.budget}
    command = [sys.executable, "-m", "lwcc.launcher", "--no-tag", "-np", str(nodes), "--net", rate]
    command += [str(HERE / "simulate_rank.py"), json.dumps(words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=args.limit, check=False)
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode}: {done.stderr[-1000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def predict(rows: Sequence[dict[str, Any]], nodes: int, rate: str) -> dict[str, Any]:
    """Fit the costs to the calibration set; return them and, for each tested cell, (measured, predicted) seconds."""
    network = simulating.network_of(rate, nodes, 0, True)
    seen = [calibration.Seen(*row["case"], row["t"]) for row in rows if row["case"][0] != "allreduce"]
    costs, left = calibration.fit(seen, network)
    cells: dict[int, dict[str, tuple[float, float]]] = {}
    for row in rows:
        collective, name, nbytes = row["case"]
        if collective == "allreduce":
            found = simulating.run(find(name, collective), nbytes, network, costs)
            cells.setdefault(nbytes, {})[name] = (row["t"], found.seconds)
    return {"costs": costs, "left": left, "cells": cells}


def show(cells: dict[int, dict[str, tuple[float, float]]]) -> tuple[list[float], list[bool]]:
    """Print the cells of a network; return the errors, and whether each pick was good."""
    errors, good = [], []
    print("| bytes | pick / best | " + " | ".join(f"{a}, us (error)" for a in ALGORITHMS) + " |")
    print("|--|--|" + "--|" * len(ALGORITHMS))
    for nbytes, row in sorted(cells.items()):
        pick = min(row, key=lambda name: row[name][1])
        ratio = row[pick][0] / min(seen for seen, _ in row.values())
        good.append(ratio <= NEAR)
        errors += [abs(found / seen - 1) for seen, found in row.values()]
        texts = [f"{row[a][0] * 1e6:.0f} ({row[a][1] / row[a][0] - 1:+.0%})" for a in ALGORITHMS]
        print(f"| {size_text(nbytes)} | {pick} {ratio:.2f}{'' if good[-1] else ' !'} | " + " | ".join(texts) + " |")
    return errors, good


def main() -> int:
    """Measure what is missing, predict, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="4:none,5:10gbit,8:1gbit,4:100mbit", help="nodes:rate, comma separated")
    parser.add_argument("--folder", type=Path, default=Path("build/simulate"), help="where measurements are kept")
    parser.add_argument("--again", action="store_true", help="measure also what is there")
    parser.add_argument("--measure-only", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--budget", type=float, default=0.03, help="seconds for each case of a round")
    parser.add_argument("--limit", type=float, default=500.0, help="seconds for one network")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    errors: list[float] = []
    good: list[bool] = []
    for nodes, rate in (part.split(":") for part in args.networks.split(",")):
        file = args.folder / f"{nodes}-{rate}.json"
        if args.again or not file.exists():
            file.write_text(json.dumps(measure(args, int(nodes), rate)), encoding="utf-8")
        if args.measure_only:
            continue
        found = predict(json.loads(file.read_text(encoding="utf-8")), int(nodes), rate)
        print(f"\n## {nodes} nodes, {rate}\n\nThe calibration set is met with a median error of {found['left']:.1%}.\n")
        here, picks = show(found["cells"])
        print(f"\nMedian error {statistics.median(here):.1%}, {sum(picks)} of {len(picks)} picks good.", flush=True)
        errors += here
        good += picks
    if not errors:
        return 0
    error, share = statistics.median(errors), sum(good) / len(good)
    print(f"\nAll: median error {error:.1%} (claim {ERROR:.0%}), good picks {share:.1%} (claim {SHARE:.0%})")
    return int(error >= ERROR or share < SHARE)


if __name__ == "__main__":
    sys.exit(main())
