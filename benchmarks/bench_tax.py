"""Does the engine `mpi` cost the MPI anything? A plain C loop of MPI_Allreduce beside `lwcc bench` on that engine.

    BENCH_OPENMPI=prefix python benchmarks/bench_tax.py [--rounds 5]     (or BENCH_MPICH)
The prefix must be the MPI that mpi4py loads in this Python. Both run in place, pinned to nothing, in interleaved
rounds; the claim is that from 64 KiB up the medians differ by less than 10 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import bench_allreduce
import peers

from lwcc import bench

SIZES = (64 << 10, 1 << 20, 16 << 20)
CLAIM = 0.10


def engine_times(args: argparse.Namespace) -> dict[int, float]:
    """Return seconds by size on the engine mpi."""
    return {row["size"]: row["t_med"] for row in bench.run_engine(args, "mpi")}


def loop_times(folder: Path, subject: peers.Subject) -> dict[int, float]:
    """Return seconds by size of the plain loop."""
    return {int(row[3]): float(row[5]) * 1e-6 for row in bench_allreduce.run(subject, folder, 120.0)}


def main() -> int:
    """Measure and print; 1 if the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--np", type=int, default=2)
    a = parser.parse_args()
    series = peers.Series(a.np, "allreduce", ",".join(map(str, SIZES)), 0.1, False)
    args = argparse.Namespace(
        collective="allreduce", sizes=list(SIZES), dtype="float32", algorithm="", in_place=True, registered=False,
        budget=0.1, np=a.np, net=None, transport=None, limit=120.0,
    )  # fmt: skip
    plain: dict[int, list[float]] = {size: [] for size in SIZES}
    engine: dict[int, list[float]] = {size: [] for size in SIZES}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        subjects = peers.peers(Path(name), series)[:1]
        if not subjects:
            parser.error("set BENCH_OPENMPI or BENCH_MPICH to the prefix of the MPI")
        for _ in range(a.rounds):
            for times, found in ((plain, loop_times(Path(name), subjects[0])), (engine, engine_times(args))):
                for size, seconds in found.items():
                    times[size].append(seconds)
    good = True
    for size in SIZES:
        ours, theirs = statistics.median(engine[size]), statistics.median(plain[size])
        good &= ours <= theirs * (1 + CLAIM)
        print(f"{size:>9} B  C loop {theirs * 1e6:9.1f} us  engine {ours * 1e6:9.1f} us  {ours / theirs - 1:+.0%}")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
