"""Compare two evaluations cell by cell: better, worse or noise; or see how far their verdicts agree.

    python benchmarks/compare.py OLD NEW                times of LWCC, new against old
    python benchmarks/compare.py --agree FIRST SECOND   do two evaluations say the same of LWCC and its rivals?
    python benchmarks/compare.py --record FILE.csv NEW  keep NEW's figures, with machine, versions and commit

OLD, NEW: a folder of `make bench` (its *.json and training runs), one file of `lwcc bench --json`, or a recorded CSV.
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
    """Return the times of each cell, one for each round. Raises ValueError if there are none, or two of a cell."""
    try:
        return cells_of(path)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not what was expected in such a file: {type(error).__name__}: {error}") from None


def cells_of(path: Path) -> dict[Cell, list[float]]:
    """Do the work of `read`."""
    if not path.exists():
        raise ValueError(f"{path}: there is no such file or folder")
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            rows = [(cell_of(row), [float(t) for t in row["rounds_s"].split()]) for row in csv.DictReader(file)]
    else:
        rows = [(cell_of(row), row["rounds_s"]) for record in records(path) for row in rows_of(record)]
    cells = dict(rows)
    if len(cells) < len(rows):
        raise ValueError(f"{path}: two benchmarks measured the same")
    if not cells:
        raise ValueError(f"{path}: no figures of lwcc bench")
    return cells


def cell_of(row: dict[str, Any]) -> Cell:
    """Return what a row is about."""
    return row["collective"], str(row["np"]), row["net"], str(row["size"]), row["engine"]


def records(path: Path) -> list[dict[str, Any]]:
    """Return the benchmarks and training runs of a folder, or the one of a file."""
    files: Iterable[Path] = [path] if path.suffix == ".json" else []
    if path.is_dir():
        files = [*sorted(path.glob("*.json")), *sorted(path.glob("*/run.json"))]
    found = []
    for file in files:
        try:
            found.append(json.loads(file.read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(f"{file}: no JSON, or not all of it: {error}") from None
    return [record for record in found if isinstance(record, dict) and record.get("kind") in ("bench", "baseline")]


def rows_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a record's rows with the columns HEADS; in training a time is that of one sample."""
    about = {"np": record["np"], "net": record["net"], "machine": record["machine"], "version": record["lwcc_version"]}
    if record["kind"] == "bench":
        return [{**about, "collective": record["collective"], "size": row["size"], "engine": row["name"],
                 "rounds_s": row["rounds"]} for row in record["rows"]]  # fmt: skip
    script = " ".join([Path(record["command"][0]).name, *record["command"][1:]])
    times = {name: [1 / run["samples_per_s"] for run in record["runs"] if run["variant"] == name and
                    run["samples_per_s"]] for name in record["settings"]}  # fmt: skip
    return [{**about, "collective": f"training {script}", "size": "", "engine": name, "rounds_s": found}
            for name, found in times.items() if found]  # fmt: skip


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
        out = csv.DictWriter(file, HEADS)
        out.writeheader()
        for row in (row for one in records(source) for row in rows_of(one)):
            times = " ".join(f"{t:.4g}" for t in row["rounds_s"])
            out.writerow({**row, "rounds_s": times, "commit": commit.stdout.strip()})


def main(argv: list[str] | None = None) -> int:
    """Print the comparison; 1 if something became worse, or the evaluations contradict each other too often."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--agree", action="store_true")
    kind.add_argument("--record", type=Path, metavar="FILE.csv")
    parser.add_argument("paths", type=Path, nargs="+")
    a = parser.parse_args(argv)
    if len(a.paths) != (1 if a.record else 2):
        parser.error("give one evaluation" if a.record else "give two evaluations")
    try:
        found = [read(path) for path in a.paths]
        if a.record:
            record(a.record, a.paths[0])
            return 0
    except (ValueError, OSError) as error:
        parser.exit(2, f"compare.py: {error}\n")
    first, second = found
    if a.agree:
        share, against = agreement(rivalry(first), rivalry(second))
        for cell in against:
            print("contradicted:", *filter(None, cell))
        print(f"verdicts agree in {share:.1%} of the cells (at least {AGREE:.0%} is wanted)")
        return int(share < AGREE)
    changed = changes(first, second)
    for cell, said, ratio in changed:
        print(f"{said:<7}{ratio:6.2f}x  {' '.join(filter(None, cell))}")
    print(", ".join(f"{sum(s == kind for _, s, _ in changed)} {kind}" for kind in ("better", "noise", "worse")))
    return int(any(said == "worse" for _, said, _ in changed))


if __name__ == "__main__":
    sys.exit(main())
