"""Several hosts: LWCC beside a prototype in C and the MPIs that are installed, over networks of namespaces (as root).

    BENCH_TCP_PROTOTYPE=allreduce.c:pb.c BENCH_OPENMPI=prefix BENCH_MPICH=prefix python benchmarks/bench_net.py
Each network (nodes x rate) is made once, and each round runs every subject once on it, in turn, with one rank on each
node. A figure is the median over rounds of the median over iterations of the maximum over ranks. The prototype is a
program of its own with the loop of c/board.c (sources, separated by colons); it is told where it is by RANK and NP.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import peers
from bench_allreduce import table

from lwcc.launcher.net import Network, parse_net

SIZES = "1k,16k,64k,256k,1m,4m,16m,64m"
PROTOTYPE_NET = "198.18.7"  # the addresses that the prototype expects
# how the prototype is fastest: (nodes, rate) -> settings by label; the first of them for what is not listed
PROTOTYPES: dict[int, dict[str, dict[str, str]]] = {
    2: {"proto": {"AR_PIECE": str(4 << 20), "AR_RECV": str(1 << 20)}},
    0: {"proto": {}, "proto-ring": {"AR_ALG": "ring", "AR_PIECE": str(4 << 20)}},
}


def lwcc_ranks(folder: Path, series: peers.Series, network: Network, env: dict[str, str]) -> list[peers.Subject]:
    """One subject for each rank, without a launcher, so that all subjects share one network."""
    whole = peers.lwcc(folder, series, "raw-private")
    script = next(i for i, word in enumerate(whole.command) if word.endswith("subject_lwcc.py"))
    port = 20000 + os.getpid() % 20000
    meet = {"WORLD_SIZE": str(series.np), "MASTER_ADDR": network.address(0), "MASTER_PORT": str(port),
            "LWCC_SECRET": "5a" * 32, **network.variables(), **whole.env, **env}  # fmt: skip
    return [
        peers.Subject(
            whole.label,
            (*network.prefix(rank), sys.executable, *whole.command[script:]),
            {**meet, "RANK": str(rank)},
        )
        for rank in range(series.np)
    ]


def prototype_ranks(folder: Path, series: peers.Series, network: Network, name: str) -> list[peers.Subject]:
    """The prototype's ranks with the settings of that name, or none if there is no prototype."""
    sources = os.environ.get("BENCH_TCP_PROTOTYPE", "")
    if not sources:
        return []
    program = folder / "prototype"
    if not program.exists():
        include = [f"-I{Path(source).parent}" for source in sources.split(":")]
        command = ["gcc", "-O3", "-march=native", *include, "-o", str(program), *sources.split(":")]
        subprocess.run(command, check=True)
    settings = PROTOTYPES.get(series.np, PROTOTYPES[0])[name]
    env = {"NP": str(series.np), "PB_SHM": "{board}", "PB_PIN": "1", "PB_SIZES": in_bytes(series.sizes),
           "PB_BUDGET": str(series.budget), "PB_PEER": name, "AR_CC": "cubic", **settings}  # fmt: skip
    return [
        peers.Subject(name, (*network.prefix(rank), str(program)), {**env, "RANK": str(rank)})
        for rank in range(series.np)
    ]


def in_bytes(sizes: str) -> str:
    """Sizes with their suffixes worked out."""
    scale = {"k": 1 << 10, "m": 1 << 20}
    return ",".join(str(int(float(s.rstrip("km")) * scale.get(s[-1], 1))) for s in sizes.split(","))


def mpi_subjects(folder: Path, series: peers.Series, network: Network) -> Iterator[list[peers.Subject]]:
    """The MPIs over the network's wire: Open MPI by its own TCP, MPICH by UCX over TCP."""
    for subject in peers.peers(folder, series):
        if subject.label not in ("openmpi", "mpich"):
            continue
        head, *rest = subject.command
        command = (head, *network.mpi_arguments(subject.label), *rest)
        crowded = {"MPIR_CVAR_DEVICE_COLLECTIVES": "", "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": ""}
        env = {key: value for key, value in subject.env.items() if key not in crowded}
        yield [replace(subject, command=command, env={**env, **network.variables()})]


def run(ranks: list[peers.Subject], folder: Path, limit: float) -> list[list[str]]:
    """Run one subject once; return its rows in the form of c/board.h. A failure is printed and gives none."""
    board, label = folder / "board", ranks[0].label
    board.unlink(missing_ok=True)
    jobs = []
    for rank in ranks:
        command = [part.replace("{board}", str(board)) for part in rank.command]
        env = {key: value.replace("{board}", str(board)) for key, value in rank.env.items()}
        jobs.append(
            subprocess.Popen(
                command, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    rows = []
    try:
        for job in jobs:
            out, err = job.communicate(timeout=limit)
            rows += [row for row in csv.reader(out.splitlines()) if len(row) in (12, 18)]
            if job.returncode:
                print(f"# {label}: exit {job.returncode}: {err[-300:]}", file=sys.stderr)
    except subprocess.TimeoutExpired:
        print(f"# {label}: no result within {limit:.0f} s", file=sys.stderr)
    finally:
        for job in jobs:
            job.kill()
            job.communicate()
    return [row if len(row) == 12 else from_prototype(row) for row in rows]


def from_prototype(row: list[str]) -> list[str]:
    """Reorder a row of the prototype's loop, which says whether the result was right."""
    label, np, nbytes, iterations, median, p10, p90 = (row[i] for i in (1, 3, 5, 6, 7, 8, 9))
    wrong = str(1 - int(row[15]))
    return [label, "allreduce", np, nbytes, iterations, median, p10, p90, row[12], wrong, row[16], row[17]]


def measure(a: argparse.Namespace, nodes: int, rate: str) -> list[list[str]]:
    """All rounds on one network. In a process of its own, which moves into the network's namespace."""
    network = Network(parse_net(rate), nodes)
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        peers.build(folder)
        for node in range(nodes):
            place = (*network.prefix(node), "ip", "addr", "add", f"{PROTOTYPE_NET}.{node + 1}/24", "dev", "eth0")
            subprocess.run(place, check=True)
        series = peers.Series(nodes, "allreduce", a.sizes, a.budget, True)
        subjects = [lwcc_ranks(folder, series, network, {})]
        for algorithm in a.algorithms.split(",") if a.algorithms else []:
            forced = lwcc_ranks(folder, series, network, {"LWCC_ALGORITHM": f"allreduce={algorithm}"})
            subjects.append([named(subject, f"lwcc-{algorithm}") for subject in forced])
        subjects += [prototype_ranks(folder, series, network, n) for n in PROTOTYPES.get(nodes, PROTOTYPES[0])]
        subjects += mpi_subjects(folder, series, network)
        for _ in range(a.rounds):
            for ranks in filter(None, subjects):
                rows += run(ranks, folder, a.limit)
    network.close()
    return rows


def named(subject: peers.Subject, label: str) -> peers.Subject:
    """The same subject under another label."""
    command = tuple(label if word == subject.label else word for word in subject.command)
    return replace(subject, label=label, command=command)


def main() -> int:
    """Measure and print a table for each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="2,4", help="numbers of nodes, comma separated")
    parser.add_argument("--rates", default="none,10gbit,1gbit", help="rates of a node's link, comma separated")
    parser.add_argument("--sizes", default=SIZES, help="bytes per rank, comma separated, suffixes k and m")
    parser.add_argument("--algorithms", default="", help="LWCC's algorithms to measure beside its own choice")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=0.2, help="seconds per size")
    parser.add_argument("--low", action="store_true", help="10th percentiles of iterations: for a machine that is busy")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one subject of one round")
    a = parser.parse_args()
    wrong = 0
    for rate in a.rates.split(","):
        for nodes in map(int, a.nodes.split(",")):
            print(f"\n## {nodes} nodes, {rate}\n", flush=True)
            child = os.fork()
            if child == 0:
                rows = measure(a, nodes, rate)
                table([[*r[:5], r[6], *r[6:]] for r in rows] if a.low else rows, None)
                sys.stdout.flush()
                os._exit(int(any(row[9] != "0" for row in rows)))
            wrong |= os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return wrong


if __name__ == "__main__":
    sys.exit(main())
