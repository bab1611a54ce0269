"""Does an engine cost what it carries anything? A plain loop beside the engine.

    python benchmarks/bench_tax.py [--np 2] [--rounds 5]           with mpi4py and an MPI in this Python
    python benchmarks/bench_tax.py --engine gloo                   with torch
`in turn`: both called alternately by the same ranks on the same memory, so that the machine cannot tell them apart;
this decides. `programs`, for mpi: a C program of its own beside the row of `lwcc bench --vs mpi`, in turn, by rounds;
on a virtual machine whose cores wander, two starts of one program may differ by more than what is looked for.
The claim is that from 64 KiB up the engine takes at most 10 % longer. Exit code 1 if it does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import bench_allreduce
import peers

from lwcc import bench, verdict
from lwcc.launcher import mpi

SIZES = (64 << 10, 1 << 20, 16 << 20)
CLAIM = 0.10
BUDGET_S = 0.1
Times = dict[int, list[float]]


def add(times: Times, found: dict[int, float]) -> None:
    """Add one round."""
    for size, seconds in found.items():
        times[size].append(seconds)


def add_turns(pair: tuple[Times, Times], rows: list[dict[str, float]]) -> None:
    """Add one launch of `in_turn`."""
    add(pair[0], {int(row["size"]): row["direct"] for row in rows})
    add(pair[1], {int(row["size"]): row["engine"] for row in rows})


def engine_times(args: argparse.Namespace) -> dict[int, float]:
    """Return seconds by size of `lwcc bench` on the engine mpi."""
    return {row["size"]: row["t_med"] for row in bench.run_engine(args, "mpi")}


def loop_times(folder: Path, subject: peers.Subject) -> dict[int, float]:
    """Return seconds by size of the plain program."""
    return {int(row[3]): float(row[5]) * 1e-6 for row in bench_allreduce.run(subject, folder, 120.0)}


def in_turn(engine: str, script: str, path: Path, np: int) -> list[dict[str, float]]:
    """Return the rows of one launch in which the ranks alternate."""
    command = [sys.executable, "-m", "lwcc.launcher", "--no-tag", "-np", str(np), "--engine", engine]
    command += [str(peers.HERE / script), str(path), ",".join(map(str, SIZES)), str(BUDGET_S)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode}: {done.stderr[-1000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def compile_loop(folder: Path, prefix: Path) -> Path:
    """Compile c/tax.c against the MPI."""
    library = folder / "tax.so"
    subprocess.run(
        ["gcc", "-std=c11", "-O2", "-fPIC", "-shared", f"-I{prefix}/include", "-o", str(library)]
        + [str(peers.HERE / "c/tax.c"), f"-L{prefix}/lib", "-lmpi", f"-Wl,-rpath,{prefix}/lib"],
        check=True,
    )
    return library


def show(title: str, plain: Times, engine: Times) -> None:
    """Print medians and the ratio with its range over the rounds."""
    for size in SIZES:
        ratios = [e / p for e, p in zip(engine[size], plain[size])]
        said, _ = verdict.compare(engine[size], plain[size])
        print(f"{title:<9}{size:>9} B  direct {statistics.median(plain[size]) * 1e6:9.1f} us  engine "
              f"{statistics.median(engine[size]) * 1e6:9.1f} us  {statistics.median(ratios) - 1:+.1%} "
              f"({min(ratios) - 1:+.0%} to {max(ratios) - 1:+.0%}) {said}", flush=True)  # fmt: skip


def too_long(plain: Times, engine: Times) -> list[int]:
    """Return the sizes at which the median of the rounds' ratios is above the claim."""
    return [n for n in SIZES if statistics.median(e / p for e, p in zip(engine[n], plain[n])) > 1 + CLAIM]


def main() -> int:
    """Measure and print; 1 if the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--np", type=int, default=2)
    parser.add_argument("--engine", choices=("mpi", "gloo"), default="mpi")
    a = parser.parse_args()
    return gloo_tax(a) if a.engine == "gloo" else mpi_tax(a)


def gloo_tax(a: argparse.Namespace) -> int:
    """The same for torch.distributed, in turn only: the ranks' main thread calls it, where the engine has threads."""
    pair: tuple[Times, Times] = ({n: [] for n in SIZES}, {n: [] for n in SIZES})
    for _ in range(a.rounds):
        with tempfile.TemporaryDirectory() as folder:
            add_turns(pair, in_turn("gloo", "tax_gloo_rank.py", Path(folder), a.np))
    print(f"gloo, {a.np} ranks, {a.rounds} rounds")
    show("in turn", *pair)
    return int(bool(too_long(*pair)))


def mpi_tax(a: argparse.Namespace) -> int:
    """The engine `mpi` beside a loop in C, in turn and as programs."""
    found = mpi.find_mpi()
    prefix = Path(found.launcher).parent.parent
    os.environ[{"openmpi": "BENCH_OPENMPI", "mpich": "BENCH_MPICH"}.get(found.kind, "BENCH_IMPI")] = str(prefix)
    series = peers.Series(a.np, "allreduce", ",".join(map(str, SIZES)), BUDGET_S, False)
    args = argparse.Namespace(
        collective="allreduce", sizes=list(SIZES), dtype="float32", algorithm="", in_place=True, registered=False,
        budget=BUDGET_S, np=a.np, net=None, transport=None, limit=120.0,
    )  # fmt: skip
    pairs: list[tuple[Times, Times]] = [({n: [] for n in SIZES}, {n: [] for n in SIZES}) for _ in range(2)]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        subject = peers.peers(Path(name), series)[0]
        library = compile_loop(Path(name), prefix)
        for _ in range(a.rounds):
            add_turns(pairs[0], in_turn("mpi", "tax_rank.py", library, a.np))
            add(pairs[1][0], loop_times(Path(name), subject))
            add(pairs[1][1], engine_times(args))
    print(f"{found.version}, {a.np} ranks, {a.rounds} rounds")
    show("in turn", *pairs[0])
    show("programs", *pairs[1])
    return int(bool(too_long(*pairs[0])))


if __name__ == "__main__":
    sys.exit(main())
