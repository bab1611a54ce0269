"""Compare two evaluations cell by cell: better, worse or noise; or see how far their verdicts agree.

    python benchmarks/compare.py OLD NEW                times of LWCC, new against old
    python benchmarks/compare.py --agree FIRST SECOND   do two evaluations say the same of LWCC and its rivals?
    python benchmarks/compare.py --record FILE.csv NEW  keep NEW's figures, with machine, versions and commit

OLD, NEW: a folder of `make bench` (its *.json), one file of `lwcc bench --json`, or a recorded CSV.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lwcc import verdict

Cell = tuple[str, str, str, str, str]  # collective, ranks, network, size, engine
HEADS = ("collective", "np", "net", "size", "engine", "rounds_s", "machine", "version", "commit")
AGREE = 0.95


def read(path: Path) -> dict[Cell, list[float]]:
    """Return the times of each cell, one for each round. Raises ValueError if there are none."""
    cells: dict[Cell, list[float]] = {}
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                cell = (row["collective"], row["np"], row["net"], row["size"], row["engine"])
                cells[cell] = [float(t) for t in row["rounds_s"].split()]
    for record in records(path):
        for row in record["rows"]:
            cell = (record["collective"], str(record["np"]), record["net"], str(row["size"]), row["name"])
            cells[cell] = row["rounds"]
    if not cells:
        raise ValueError(f"{path}: no figures of lwcc bench")
    return cells


def records(path: Path) -> list[dict[str, Any]]:
    """Return the benchmarks of a folder or file."""
    files: Iterable[Path] = sorted(path.glob("*.json")) if path.is_dir() else [path] if path.suffix == ".json" else []
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return [record for record in found if isinstance(record, dict) and record.get("kind") == "bench"]


def changes(old: dict[Cell, list[float]], new: dict[Cell, list[float]]) -> list[tuple[Cell, str, float]]:
    """Return what became of each cell of LWCC that both have."""
    both = [cell for cell in old if cell in new and cell[4].startswith("lwcc")]
    return [(cell, *verdict.compare(new[cell], old[cell])) for cell in both]


def rivalry(cells: dict[Cell, list[float]]) -> dict[Cell, str]:
    """Return the verdict on LWCC against each other engine, for each of its cells."""
    found = {}
    for cell, times in cells.items():
        ours = cells.get((*cell[:4], "lwcc"))
        if ours is not None and not cell[4].startswith("lwcc"):
            found[cell] = verdict.compare(ours, times)[0]
    return found


def agreement(first: dict[Cell, str], second: dict[Cell, str]) -> tuple[float, list[Cell]]:
    """Return the share of cells that do not contradict each other, and those that do. Noise contradicts nothing."""
    both = [cell for cell in first if cell in second]
    against = [cell for cell in both if {first[cell], second[cell]} == {"better", "worse"}]
    return (1 - len(against) / len(both) if both else 0.0), against


def record(path: Path, source: Path) -> None:
    """Write the figures as CSV."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow(HEADS)
        for one in records(source):
            for row in one["rows"]:
                times = " ".join(f"{t:.4g}" for t in row["rounds"])
                out.writerow([one["collective"], one["np"], one["net"], row["size"], row["name"], times,
                              one["machine"], one["lwcc_version"], commit.stdout.strip()])  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Print the comparison; 1 if something became worse, or the evaluations contradict each other too often."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--agree", action="store_true")
    kind.add_argument("--record", type=Path, metavar="FILE.csv")
    parser.add_argument("paths", type=Path, nargs="+")
    a = parser.parse_args(argv)
    if a.record:
        record(a.record, a.paths[0])
        return 0
    if len(a.paths) != 2:
        parser.error("give two evaluations")
    first, second = (read(path) for path in a.paths)
    if a.agree:
        share, against = agreement(rivalry(first), rivalry(second))
        for cell in against:
            print("contradicted:", *cell)
        print(f"verdicts agree in {share:.1%} of the cells (at least {AGREE:.0%} is wanted)")
        return int(share < AGREE)
    found = changes(first, second)
    for cell, said, ratio in found:
        print(f"{said:<7}{ratio:6.2f}x  {' '.join(cell)}")
    print(", ".join(f"{sum(s == kind for _, s, _ in found)} {kind}" for kind in ("better", "noise", "worse")))
    return int(any(said == "worse" for _, said, _ in found))


if __name__ == "__main__":
    sys.exit(main())
