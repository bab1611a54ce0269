"""The whole evaluation, as `make bench` runs it: collectives on one host and over shaped networks, and training.

    python benchmarks/evaluate.py --out build/bench [--quick] [--vs mpi,gloo]
Every part is one command that can be run alone; it is printed before it runs. Parts whose needs are missing (an MPI,
the right to make networks) are left out with the reason. At the end: report.html, report.md and figures.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "examples"
NETWORKS = ("none", "10gbit", "1gbit", "100mbit")


def collectives(quick: bool, vs: str) -> list[tuple[str, list[str]]]:
    """Return (name, arguments of lwcc) of each benchmark."""
    rounds = ["--rounds", "3" if quick else "5", "--budget", "0.02" if quick else "0.1"]
    sides = [*rounds, *(["--vs", vs] if vs else [])]
    found = []
    for np in (2,) if quick else (2, 4, 8):
        few = ["--rounds", "3"] if np > 2 else []  # a minute each
        sizes = ["-b", "1K", "-e", "64M", "-f", "16"]
        found.append((f"allreduce-{np}", ["allreduce", "-np", str(np), *sizes, *sides, *few]))
    if not quick:
        for name in ("broadcast", "allgather", "reducescatter", "alltoall", "barrier"):
            found.append((f"{name}-2", [name, "-np", "2", "-b", "1K", "-e", "16M", "-f", "64", *sides]))
    for net in NETWORKS[:: 2 if quick else 1]:
        most = {"none": "16M", "10gbit": "16M", "1gbit": "4M", "100mbit": "1M"}[net]
        sizes = ["-b", "1K", "-e", most, "-f", "16"]
        found.append((f"net-{net}", ["allreduce", "-np", "2", "--net", net, *sizes, *sides]))
    return found


def trainings(quick: bool, vs: str) -> list[tuple[str, list[str]]]:
    """Return (name, arguments of lwccrun) of each training run."""
    base = ["--baseline", vs, "--repeat", "1" if quick else "3"]
    found = [("train-cnn", ["-np", "2", *base, str(EXAMPLES / "pytorch_mnist.py")])]
    if not quick:
        found += [
            ("train-mlp", ["-np", "2", *base, str(EXAMPLES / "pytorch_synthetic_benchmark.py"), "--model", "mlp"]),
            ("train-text", ["-np", "2", *base, str(EXAMPLES / "pytorch_text.py"), "--steps", "100"]),
        ]
    return found


def run(name: str, command: list[str], log: Path) -> bool:
    """Run one part; say how it went."""
    began = time.monotonic()
    print(f"--- {name}: {' '.join(command)}", flush=True)
    with log.open("w", encoding="utf-8") as file:
        code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    state = "done" if code == 0 else f"exit code {code}, see {log}"
    print(f"    {state}, {time.monotonic() - began:.0f} s", flush=True)
    return code == 0


def main() -> int:
    """Run all, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("--quick", action="store_true", help="a few minutes: fewer sizes, rounds and parts")
    parser.add_argument("--vs", default="mpi,gloo", help="engines to compare with (default %(default)s)")
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    python = [sys.executable, "-m"]
    made = []
    for name, arguments in collectives(a.quick, a.vs):
        result = a.out / f"{name}.json"
        result.unlink(missing_ok=True)
        if run(name, [*python, "lwcc", "bench", *arguments, "--json", str(result)], a.out / f"{name}.log"):
            made.append(str(result))
    for name, arguments in trainings(a.quick, a.vs) if a.vs else []:
        folder = a.out / name
        run(name, [*python, "lwcc.launcher", "--log-dir", str(folder), *arguments], a.out / f"{name}.log")
        if (folder / "run.json").exists():
            made.append(str(folder))
    if not made:
        print("nothing could be measured", file=sys.stderr)
        return 1
    pages = ["-o", str(a.out / "report.html"), "--markdown", str(a.out / "report.md"), "--svg", str(a.out / "figures")]
    return subprocess.run([*python, "lwcc", "report", *made, *pages], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
