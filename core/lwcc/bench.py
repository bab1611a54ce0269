"""`lwcc bench`: a collective on LWCC and on other engines, side by side, as a table in the manner of nccl-tests.

Rounds interleave the engines; a time is the median over rounds of the median over iterations of the longest over ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, Optional

from lwcc import dtypes
from lwcc.authoring import find
from lwcc.launcher import info
from lwcc.launcher.engines import ENGINES, Settings
from lwcc.launcher.measure import size_text
from lwcc.launcher.mpi import best, find_mpi, plain
from lwcc.launcher.net import parse_net, wire_of
from lwcc.launcher.spawn import CannotRun
from lwcc.limited import run_limited

COLLECTIVES = ("allreduce", "broadcast", "allgather", "reducescatter", "alltoall", "barrier", "p2p")
HEADS = ("size", "count", "dtype", "engine", "t_med us", "t_p99", "cv%", "algbw GB/s", "busbw", "of limit", "wrong",
         "vs_best")  # fmt: skip
LIMIT_CODE = 124  # as lwccrun --timeout has it
ABOUT = """\
Time a collective of LWCC on real ranks of this machine, beside other engines if --vs names them, in interleaved rounds;
check every result; print a table of the sizes. p2p also fits what a message costs, and keeps it for jobs over a wire.
Exit code: 0 fine, 1 a result was wrong, 2 wrong usage, 124 an engine reached --limit."""
EXAMPLE = "example: lwcc bench allreduce -np 4 -b 1K -e 64M --vs mpi,gloo --json run.json"


class BenchError(RuntimeError):
    """A measurement could not be made."""


class LimitReached(BenchError):
    """A round took too long; `rows`: what it had measured until then."""

    def __init__(self, name: str, seconds: float, rows: list[dict[str, Any]]) -> None:
        super().__init__(f"lwcc bench: {name} reached the limit of {seconds:g} s for one round (--limit)")
        self.rows = rows


def parse_size(text: str) -> int:
    """Parse bytes with a suffix K, M or G; ValueError."""
    scale = {"k": 10, "m": 20, "g": 30}.get(text[-1:].lower(), 0)
    try:
        value = float(text[:-1] if scale else text) * (1 << scale)
        if value < 0 or value != int(value):
            raise ValueError("negative, or a part of a byte")
    except (ValueError, OverflowError):
        raise ValueError(f"lwcc: {text!r} is not a number of bytes, such as 64, 4K, 1.5M or 1G") from None
    return int(value)


def sizes_between(first: int, last: int, factor: float) -> list[int]:
    """Sizes from `first` to `last`, each `factor` times the one before."""
    if first < 1 or last < first or factor <= 1:
        raise ValueError("lwcc: -b must be at least 1, -e at least -b, and -f more than 1")
    found = [first]
    while found[-1] * factor <= last:
        found.append(int(found[-1] * factor))
    return found


def busbw_factor(collective: str, ranks: int) -> float:
    """Return what turns bytes per time into bus bandwidth, as nccl-tests defines it."""
    p = ranks
    return {"allreduce": 2 * (p - 1) / p, "allgather": (p - 1) / p, "reducescatter": (p - 1) / p,
            "alltoall": (p - 1) / p}.get(collective, 1.0)  # fmt: skip


def limit_seconds(collective: str, ranks: int, row: dict[str, Any]) -> float:
    """Return how long the memory must take: bytes that have to move, at the speed of a+=b on all cores at once."""
    moved = {"allreduce": 2 * ranks, "broadcast": ranks, "p2p": 2, "allgather": ranks + 1, "reducescatter": ranks + 1,
             "alltoall": 2 * ranks}.get(collective, 0)  # fmt: skip
    if not row["t_fold"]:
        return 0.0
    speed = 3 * ranks * row["fold_nbytes"] / row["t_fold"]
    return float(moved * row["size"] / speed)


def link_seconds(collective: str, ranks: int, size: int, net: str) -> float:
    """Return how long a shaped link of each rank's node must take; 0 if the network is not shaped."""
    rate = parse_net(net).bits_per_s()
    return busbw_factor(collective, ranks) * size * 8 / rate if rate and size else 0.0


def variants(engines: Sequence[str], np: int, mpi_best: bool) -> list[tuple[str, Settings]]:
    """Return what is to be run: an engine and its settings, LWCC first.

    Raises:
        BenchError: the MPI or mpi4py is missing; the text says what to install.
    """
    found = [("own", Settings("lwcc"))]
    for engine in engines:
        if engine == "mpi":
            try:
                mpi = find_mpi()
            except CannotRun as error:
                raise BenchError(f"lwcc bench: {error}") from None
            found.append((engine, plain(mpi, np)))  # a loop of blocking calls: that setting changes nothing here
            found += [(engine, s) for s in best(mpi, np) if mpi_best and s.name != "mpi-blocking"]
        else:
            found.append((engine, Settings(engine)))
    return found


def run_engine(args: argparse.Namespace, engine: str, settings: str = "") -> list[dict[str, Any]]:
    """Run one round on one engine, an MPI with the settings of that name; return its rows. LimitReached, BenchError."""
    algorithms = args.algorithm.split(",") if args.algorithm and engine == "own" else [""]
    series = {
        "collective": args.collective, "sizes": args.sizes, "dtype": args.dtype, "algorithms": algorithms,
        "in_place": args.in_place, "registered": args.registered, "budget_s": args.budget,
    }  # fmt: skip
    command = [sys.executable, "-m", "lwcc.launcher", "--no-tag", "-np", str(args.np), "--engine", engine]
    command += ["--mpi-settings", settings] if engine == "mpi" and settings else []
    command += ["--net", args.net] if args.net else []
    command += ["-x", f"LWCC_TRANSPORT={args.transport}"] if args.transport and engine == "own" else []
    command += ["-m", "lwcc.bench_rank", json.dumps(series)]
    done = run_limited(command, args.limit)
    if done.code:
        tail = [line for line in done.err.splitlines() if line.strip()][-6:]
        raise BenchError(f"{engine}: exit code {done.code}\n  " + "\n  ".join(tail))
    rows = [json.loads(line) for line in done.out.splitlines() if line.startswith("{") and line.endswith("}")]
    for row in rows:
        row["engine"] = "lwcc" if engine == "own" else engine
        row["name"] = f"lwcc:{row['algorithm']}" if row["algorithm"] else settings or row["engine"]
    if done.code is None:
        raise LimitReached(settings or ("lwcc" if engine == "own" else engine), args.limit, rows)
    return rows


def collect(rounds: Sequence[Sequence[dict[str, Any]]], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Put the rounds together: one record for each size and name, by size."""
    cells: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for rows in rounds:
        for row in rows:
            cells.setdefault((row["size"], row["name"]), []).append(row)
    found = []
    fastest: dict[int, dict[str, Any]] = {}  # of a size: whose arithmetic took least
    for row in (row for rows in rounds for row in rows):
        if row["t_fold"] < fastest.setdefault(row["size"], row)["t_fold"]:
            fastest[row["size"]] = row
    for (size, name), rows in cells.items():
        medians = [row["t_med"] for row in rows]
        t = statistics.median(medians)
        floor = limit_seconds(args.collective, args.np, fastest[size])  # one limit for all engines
        if args.net:
            floor = max(floor, link_seconds(args.collective, args.np, size, args.net))
        found.append(
            {
                "size": size, "count": rows[0]["count"], "dtype": args.dtype, "name": name,
                "engine": rows[0]["engine"], "algorithm": rows[0]["algorithm"], "t_med": t, "rounds": medians,
                "t_p99": statistics.median(row["t_p99"] for row in rows),
                "cv": statistics.pstdev(medians) / t if len(medians) > 1 else rows[0]["cv"],
                "algbw": size / t, "busbw": size / t * busbw_factor(args.collective, args.np),
                "limit_s": floor, "share": floor / t, "wrong": sum(row["wrong"] for row in rows),
                "shared_memory": rows[0]["shared_memory"], "iterations": sum(row["iterations"] for row in rows),
            }
        )  # fmt: skip
    for record in found:
        best = min(other["t_med"] for other in found if other["size"] == record["size"])
        record["vs_best"] = record["t_med"] / best
    return sorted(found, key=lambda r: int(r["size"]))


def table(records: Sequence[dict[str, Any]], heads: Sequence[str] = HEADS) -> str:
    """Return the records as a text table, with these columns."""
    lines = [tuple(heads)]
    for r in records:
        cells = {
            "size": str(r["size"]), "count": str(r["count"]), "dtype": r["dtype"], "engine": r["name"],
            "t_med us": f"{r['t_med'] * 1e6:.2f}", "t_p99": f"{r['t_p99'] * 1e6:.2f}", "cv%": f"{r['cv'] * 100:.0f}",
            "algbw GB/s": f"{r['algbw'] / 1e9:.3f}", "busbw": f"{r['busbw'] / 1e9:.3f}",
            "of limit": f"{r['share']:.0%}" if r["limit_s"] else "-", "wrong": str(r["wrong"]),
            "vs_best": f"{r['vs_best']:.2f}",
        }  # fmt: skip
        lines.append(tuple(cells[head] for head in heads))
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    return "\n".join("  ".join(f"{cell:>{w}}" for cell, w in zip(line, widths)) for line in lines)


def fit(records: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Fit t = alpha + beta * bytes to one engine's messages, with equal weight for equal relative errors."""
    import numpy as np

    sizes = np.array([r["size"] for r in records], float)
    times = np.array([r["t_med"] for r in records])
    design = np.stack([np.ones_like(sizes), sizes], 1) / times[:, None]
    (alpha, beta), *_ = np.linalg.lstsq(design, np.ones_like(times), rcond=None)
    return max(float(alpha), 0.0), max(float(beta), 0.0)


def cost_file() -> str:
    """Where the fitted cost of the wire is kept; lwccrun gives it to all ranks."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(home, "lwcc", "cost.json")


def report_p2p(
    records: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]], wire: str = ""
) -> Optional[dict[str, Any]]:
    """Print the fit of each engine; store LWCC's if it went over a wire."""
    stored: Optional[dict[str, Any]] = None
    for name in dict.fromkeys(r["name"] for r in records):
        mine = [r for r in records if r["name"] == name]
        if len(mine) < 3:
            print(f"# {name}: three sizes or more are needed for a fit")
            continue
        alpha, beta = fit(mine)
        big = max(rows, key=lambda row: row["fold_nbytes"])
        gamma = big["t_fold"] / big["fold_nbytes"]
        print(f"# {name}: alpha {alpha * 1e6:.2f} us, beta {beta * 1e9:.4f} ns/B ({1 / beta / 1e9 if beta else 0:.2f} "
              f"GB/s), gamma {gamma * 1e9:.4f} ns/B")  # fmt: skip
        if name == "lwcc" and not mine[0]["shared_memory"]:
            stored = {"alpha_s": alpha, "beta_s_per_byte": beta, "gamma_s_per_byte": gamma, "wire": wire}
    if stored is None:
        print("# not stored: the cost model is of a wire (--transport tcp, or --net)")
        return None
    keep(stored)
    where = f" for --net of the same wire ({wire}), and for lwcc simulate" if wire else ""
    print(f"# stored in {cost_file()}{where}")
    return stored


def keep(found: dict[str, Any]) -> None:
    """Put something into the file of the wire, beside what is there."""
    kept: dict[str, Any] = {}
    if os.path.exists(cost_file()):
        with open(cost_file(), encoding="utf-8") as file:
            kept = json.load(file)
    tuned = {**kept.get("tuned", {}), **found.get("tuned", {})}
    os.makedirs(os.path.dirname(cost_file()), exist_ok=True)
    with open(cost_file(), "w", encoding="utf-8") as file:
        json.dump({**kept, **found, **({"tuned": tuned} if tuned else {})}, file)


def best_settings(records: Sequence[dict[str, Any]], settings: dict[str, str]) -> str:
    """Return which settings of an MPI were the fastest at each size, and what each of them is."""
    of_mpi = [r for r in records if r["engine"] == "mpi"]
    lines = []
    if len({r["name"] for r in of_mpi}) > 1:
        winners = []
        for size in dict.fromkeys(r["size"] for r in of_mpi):
            first = min((r for r in of_mpi if r["size"] == size), key=lambda r: float(r["t_med"]))
            winners.append(f"{size_text(size)} {first['name']}")
        lines.append("# best settings of the MPI by size: " + ", ".join(winners))
    lines += [f"# settings of {name}: {text}" for name, text in settings.items()]
    return "".join(line + "\n" for line in lines)


def rounds_of(
    args: argparse.Namespace, ways: list[tuple[str, Settings]]
) -> tuple[list[list[dict[str, Any]]], list[str]]:
    """Run the interleaved rounds; return them, and who reached the limit and was left out from then on.

    Also leaves out settings beyond an MPI's plain ones that it cannot run with, and says so.
    """
    rounds: list[list[dict[str, Any]]] = []
    late: list[str] = []
    for _ in range(args.rounds):
        for engine, settings in [way for way in ways if way[1].name not in late]:
            try:
                rounds.append(run_engine(args, engine, settings.name))
            except LimitReached as reached:
                print(f"{reached}; its further rounds are left out", file=sys.stderr, flush=True)
                rounds.append(reached.rows)
                late.append(settings.name)
            except BenchError as error:
                if engine != "mpi" or settings.name == "mpi":
                    raise
                print(f"# left out: {settings.name} ({settings.text()}): {error}", flush=True)
                ways.remove((engine, settings))
    return rounds, late


def announce(args: argparse.Namespace) -> dict[str, Any]:
    """Print what is measured, where, and what is wrong with that; return it for the record."""
    cores = len(os.sched_getaffinity(0))
    header = {
        "machine": info.machine(), "load": round(os.getloadavg()[0], 2), "np": args.np, "collective": args.collective,
        "net": args.net or "", "in_place": args.in_place, "registered": args.registered, "rounds": args.rounds,
    }  # fmt: skip
    version = find_mpi().version if "mpi" in args.vs.split(",") else ""
    print("# lwcc bench " + ", ".join(f"{k} {v}" for k, v in header.items() if v != ""))
    if version:
        print(f"# mpi: {version}")
    print(
        f"# limit: bytes that must move at the speed of a+=b on {min(args.np, cores)} core(s) at once, each size alone"
    )
    if args.net:
        print(
            "# limit: also the link, at its rate, with one rank on each node; short messages pass in the shaper's burst"
        )
    if args.np > cores:
        print(f"# warning: {args.np} ranks share {cores} cores")
    if header["load"] > 0.3 * cores:
        print(f"# warning: other work is on this machine (load {header['load']:.1f}): the figures compare little")
    return {**header, "mpi": version}


def check(args: argparse.Namespace) -> None:
    """Refuse before any rank has started what cannot be measured, or could not be written; ValueError, OSError."""
    pair = args.collective == "p2p"
    for option, wrong, wanted in (
        (
            f"-np {args.np}",
            args.np != 2 if pair else args.np < 1,
            "2: a message has two ends" if pair else "at least 1",
        ),
        (f"--rounds {args.rounds}", args.rounds < 1, "at least 1"),
        (f"--budget {args.budget:g}", not args.budget > 0, "seconds, more than 0"),
        (f"--limit {args.limit:g}", not args.limit > 0, "seconds, more than 0"),
        (f"--dtype {args.dtype}", args.dtype not in dtypes.NAMES, f"one of {', '.join(dtypes.NAMES)}"),
    ):
        if wrong:
            raise ValueError(f"lwcc: {option}: expected {wanted}")
    for name in filter(None, args.algorithm.split(",")):
        if name != "shm":
            find(name, "broadcast" if pair else args.collective)
    if args.json:
        with open(args.json, "a", encoding="utf-8"):  # to learn it before the work, not after
            pass


def run(args: argparse.Namespace) -> int:
    """Measure, print the table, write --json. Returns 1 if a result was wrong, else 124 if a limit was reached."""
    args.sizes = [1] if args.collective == "barrier" else sizes_between(
        parse_size(args.b), parse_size(args.e), args.f
    )  # fmt: skip
    check(args)
    others = args.vs.split(",") if args.vs else []
    for name in others:
        if name not in ENGINES[1:]:
            raise ValueError(f"lwcc: --vs {name}: known are {', '.join(ENGINES[1:])}")
    if args.mpi_best and "mpi" not in others:
        raise ValueError("lwcc: --mpi-best needs mpi among the engines of --vs")
    ways = variants(others, args.np, args.mpi_best)
    header = announce(args)
    rounds, late = rounds_of(args, ways)
    records = collect(rounds, args)
    settings = {s.name: s.text() for engine, s in ways if engine == "mpi"}
    print(table(records))
    print(best_settings(records, settings), end="", flush=True)
    whole = args.collective == "p2p" and not late  # a fit of the sizes that were quick enough would mislead
    cost = report_p2p(records, [row for rows in rounds for row in rows], wire_of(args.net or "")) if whole else None
    if args.json:
        record = {"kind": "bench", **header, "lwcc_version": info.version(), "argv": sys.argv, "rows": records,
                  "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "cost": cost, "settings": settings,
                  "limit_reached": late}  # fmt: skip
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
    return 1 if any(r["wrong"] for r in records) else LIMIT_CODE if late else 0


def add_parser(commands: Any) -> None:
    """Add the command to `lwcc`."""
    parser = commands.add_parser(
        "bench", help="time a collective, beside other engines", description=ABOUT, epilog=EXAMPLE,
    )  # fmt: skip
    parser.add_argument(
        "collective", choices=COLLECTIVES, metavar="COLLECTIVE",
        help=f"what is timed: {', '.join(COLLECTIVES)} (a message from rank 0 to rank 1)",
    )  # fmt: skip
    parser.add_argument("-np", dest="np", type=int, default=2, metavar="N", help="ranks (default 2)")
    parser.add_argument(
        "-b", default="8", metavar="BYTES", help="first size, of the larger of input and output (default 8)"
    )
    parser.add_argument("-e", default="16M", metavar="BYTES", help="last size; suffixes K, M, G (default 16M)")
    parser.add_argument(
        "-f", type=float, default=8.0, metavar="X", help="each size is X times the one before (default 8)"
    )
    parser.add_argument("--dtype", default="float32", help="of the elements: float32 (default), bfloat16, int8 ...")
    parser.add_argument("--in-place", action="store_true", help="input and output are one array")
    parser.add_argument("--registered", action="store_true", help="arrays in registered memory")
    parser.add_argument("--algorithm", default="", metavar="A,B", help="LWCC's algorithms to compare (lwcc algos)")
    parser.add_argument("--vs", default="", metavar="ENGINES", help="mpi, gloo, or both")
    parser.add_argument("--mpi-best", action="store_true", help="with --vs mpi: also the MPI's best known settings")
    parser.add_argument("--rounds", type=int, default=3, metavar="R", help="interleaved rounds (default 3)")
    parser.add_argument(
        "--budget", type=float, default=0.1, metavar="S", help="seconds for one size of one round (default 0.1)"
    )
    parser.add_argument(
        "--limit", type=float, default=300.0, metavar="S",
        help="seconds for one engine of one round, after which it is ended and left out (default 300)",
    )  # fmt: skip
    parser.add_argument("--transport", choices=("shm", "tcp", "ucx", "shm+ucx"), help="LWCC's transport")
    parser.add_argument("--net", help="a network of namespaces, as for lwccrun")
    parser.add_argument("--json", metavar="FILE", help="write everything to this file, for lwcc report")
    parser.set_defaults(run=run)
