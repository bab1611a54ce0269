"""`lwcc simulate`: predicted times of algorithms on a network that is described, as the table of `lwcc bench`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lwcc import bench, calibration, simulating
from lwcc.authoring import AnyAlgorithm, find
from lwcc.errors import Unsupported
from lwcc.fabric import Costs, Network
from lwcc.launcher import info
from lwcc.launcher.measure import size_text

HEADS = ("size", "count", "dtype", "engine", "t_med us", "algbw GB/s", "busbw", "of limit", "vs_best")
# Bytes of control messages of one name (core/src/coord/message.h), behind the channel's header of 16 and the set's 4.
READY_NBYTES, ORDER_NBYTES = 16 + 4 + 5, 16 + 4 + 9


def algorithms(args: argparse.Namespace) -> list[AnyAlgorithm]:
    """Return what --algorithm names; default: all built-in ones of the collective."""
    from lwcc import inspection

    names = [n for n in args.algorithm.split(",") if n] or list(inspection.algorithms(args.collective))
    return [find(name, args.collective) for name in names]


def limit_seconds(collective: str, network: Network, costs: Costs, nbytes: int) -> float:
    """Return how long the ports must be busy: no algorithm is faster."""
    if network.nodes < 2:
        return 0.0
    return bench.busbw_factor(collective, network.nodes) * nbytes * network.port_s_per_byte(costs)


def record(args: argparse.Namespace, name: str, found: simulating.Prediction, limit: float) -> dict[str, Any]:
    """Return a row in the form of `lwcc bench`."""
    t = found.seconds
    algbw = found.nbytes / t if t else 0.0
    return {"size": found.nbytes, "count": found.nbytes // 4, "dtype": "float32", "name": name, "engine": "simulated",
            "algorithm": name, "t_med": t, "t_p99": t, "cv": 0.0, "algbw": algbw, "wrong": 0, "limit_s": limit,
            "busbw": algbw * bench.busbw_factor(args.collective, args.np), "share": limit / t if t else 0.0,
            "simulated": found.simulated}  # fmt: skip


def predict(args: argparse.Namespace, network: Network, costs: Costs) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a row for each size and algorithm, and notes about those that serve other ranks only."""
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for algorithm in algorithms(args):
        try:
            for size in args.sizes:
                spans: Any = [] if args.timeline else None
                found = simulating.run(algorithm, size, network, costs, spans)
                rows.append(record(args, algorithm.name, found, limit_seconds(args.collective, network, costs, size)))
                if args.timeline:
                    simulating.write_timeline(args.timeline, spans, network)
        except Unsupported as error:
            notes.append(f"# left out: {algorithm.name}: {error}")
            continue
        notes.append(f"# {algorithm.name}: simulated {rows[-1]['simulated']}")
    for row in rows:
        best = min(other["t_med"] for other in rows if other["size"] == row["size"])
        row["vs_best"] = row["t_med"] / best if best else 1.0
    return sorted(rows, key=lambda row: int(row["size"])), notes


def best(rows: Sequence[dict[str, Any]]) -> str:
    """Return which algorithm is the fastest for each size, in a line."""
    winners: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row["size"] not in winners or row["t_med"] < winners[row["size"]]["t_med"]:
            winners[row["size"]] = row
    return "# best: " + ", ".join(f"{size_text(size)} {row['name']}" for size, row in winners.items())


def control(ranks: int, costs: Costs) -> str:
    """Return what a named call that all ranks know costs its coordinator: each says ready, and is told the order.

    Names that become ready together share the messages: each adds 5 bytes there, and 4 bytes back.
    """
    others = ranks - 1
    nbytes = others * (READY_NBYTES + ORDER_NBYTES)
    busy = others * (costs.send_s + costs.recv_s + READY_NBYTES * costs.recv_s_per_byte
                     + ORDER_NBYTES * costs.send_s_per_byte)  # fmt: skip
    return (f"# control, before a named call: {others} messages of {READY_NBYTES} B to its coordinator, {others} of "
            f"{ORDER_NBYTES} B from it: {nbytes / 1e3:.3g} kB, {busy * 1e6:.4g} us of its processor")  # fmt: skip


def calibrate(args: argparse.Namespace, network: Network) -> int:
    """Measure this network, find the costs, and keep them."""
    seen = []
    for collective, names, sizes in calibration.series(args.np):
        given = argparse.Namespace(
            collective=collective, sizes=sizes, dtype="float32", algorithm=",".join(names), in_place=True,
            registered=False, budget=0.05, np=args.np, net=args.net, limit=120.0, transport="tcp", rounds=1,
        )  # fmt: skip
        seen += [calibration.Seen(collective, row["algorithm"], row["size"], row["t_med"])
                 for row in bench.run_engine(given, "own")]  # fmt: skip
    costs, left = calibration.fit(seen, network)
    parts = asdict(costs)
    for name in calibration.FITTED:
        unit = (1e9, "ns/B") if name.endswith("byte") else (1.0, "") if name == "spill" else (1e6, "us")
        print(f"# {name:<18}{parts[name] * unit[0]:10.3f} {unit[1]}")
    bench.keep({"parts": parts})
    print(f"# {len(seen)} measurements met with a median error of {left:.1%}; stored in {bench.cost_file()}")
    return 0


def predict_for(args: argparse.Namespace, ranks: int, costs: Costs) -> dict[str, Any]:
    """Predict for so many ranks; print the table. Returns the record, without rows if no algorithm serves them."""
    args.np = ranks
    network = simulating.network_of(args.net, ranks, args.cores, args.namespaces)
    began = time.monotonic()
    rows, notes = predict(args, network, costs)
    known = args.cost or os.path.exists(bench.cost_file())
    source = args.cost or bench.cost_file() if known else "a usual 20 Gb/s wire, not measured (see lwcc bench p2p)"
    print(f"# lwcc simulate {args.collective}: {network.text()}; costs: {source}")
    print("\n".join([*notes, control(ranks, costs)]))
    if rows:
        print(bench.table(rows, HEADS))
        print(f"{best(rows)}\n# simulated in {time.monotonic() - began:.1f} s")
    return {"kind": "simulate", "collective": args.collective, "np": ranks, "net": network.text(),
            "lwcc_version": info.version(), "argv": sys.argv, "costs": asdict(costs), "rows": rows}  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Predict, print, write --json."""
    counts = rank_counts(args.np)
    args.sizes = [0] if args.collective == "barrier" else bench.sizes_between(
        bench.parse_size(args.b), bench.parse_size(args.e), args.f
    )  # fmt: skip
    if (args.calibrate or args.timeline) and len(counts) > 1:
        raise ValueError("lwcc simulate: --calibrate and --timeline are of one number of ranks")
    if args.calibrate:
        args.np = counts[0]
        return calibrate(args, simulating.network_of(args.net, args.np, args.cores, True))
    if args.timeline and (len(args.sizes) > 1 or len(algorithms(args)) > 1):
        raise ValueError("lwcc simulate: --timeline is of one run: give one --algorithm, and -b and -e alike")
    costs = simulating.costs_of(args.cost)
    found = [predict_for(args, ranks, costs) for ranks in counts]
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(found if len(found) > 1 else found[0], file, indent=1)
    return int(not all(one["rows"] for one in found))


def rank_counts(text: str) -> list[int]:
    """Return the numbers of ranks of "8" or "1024,10000"; ValueError."""
    counts = [int(word) if word.isdigit() else 0 for word in text.split(",")]
    if not all(2 <= count <= simulating.RANKS_LIMIT for count in counts):
        raise ValueError(f"lwcc simulate: -np {text}: expected 2 to {simulating.RANKS_LIMIT}, or several such numbers")
    return counts


def add_parser(commands: Any) -> None:
    """Add the command to `lwcc`."""
    parser = commands.add_parser("simulate", help="predict a collective's time on a network that is described")
    parser.add_argument("collective", choices=[c for c in bench.COLLECTIVES if c != "p2p"])
    parser.add_argument("-np", "-p", dest="np", default="8", metavar="N,M", help="ranks, also several (default 8)")
    parser.add_argument("-b", default="1K", metavar="BYTES", help="first size, of the larger of input and output")
    parser.add_argument("-e", default="16M", metavar="BYTES", help="last size (suffixes K, M, G)")
    parser.add_argument("-f", type=float, default=4.0, metavar="X", help="each size is X times the one before")
    parser.add_argument("--algorithm", default="", metavar="A,B", help="as ring,mine.py:swing (default: all built-in)")
    parser.add_argument("--net", default="", help="as for lwccrun (nodes=4,rate=1gbit,delay=100us), and leaf=N: nodes "
                        "on a switch, oversub=X: its uplink is X times too slow")  # fmt: skip
    parser.add_argument("--cores", type=int, default=0, metavar="C", help="of each node (default: one for each rank)")
    parser.add_argument("--namespaces", action="store_true", help="the network as lwccrun --net makes it here: all "
                        "ranks share this machine's cores, the shapers let bursts pass")  # fmt: skip
    parser.add_argument("--cost", default="", metavar="FILE", help="costs, as lwcc bench p2p stores them (its file)")
    parser.add_argument("--calibrate", action="store_true", help="measure the network --net here first (root), and "
                        "store all the costs that the simulator knows")  # fmt: skip
    parser.add_argument("--timeline", default="", metavar="FILE", help="write what the ranks do, for Perfetto: one run")
    parser.add_argument("--json", metavar="FILE", help="write everything to this file")
    parser.set_defaults(run=run)
