"""`lwcc tune`: measure every algorithm over a wire, and keep which is fastest for which size.

The table is a line such as "allreduce=recursive_doubling@32768,allreduce=halving_doubling": the first that is not too
small for a payload serves it. lwccrun hands it to jobs of as many ranks as `LWCC_TUNED`, beside `LWCC_COST`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from lwcc import bench, inspection
from lwcc.launcher.net import wire_of

ABOUT = """\
Time every algorithm of allreduce for each size over a wire, which --net or --transport names, and keep the fastest
ones: lwccrun hands them to later jobs of as many ranks as LWCC_TUNED. Nothing is kept if a result was wrong."""
EXAMPLE = "example: lwcc tune -np 4 --net 1gbit"


def choose(times: Mapping[int, Mapping[str, float]]) -> list[tuple[str, int]]:
    """Return (algorithm, largest payload in bytes, or 0 for no limit) by ascending size.

    Args:
        times: seconds by payload in bytes and algorithm. A limit lies in the geometric middle of two sizes.
    """
    found: list[tuple[str, int]] = []
    sizes = sorted(times)
    for i, size in enumerate(sizes):
        name = min(times[size], key=lambda n: times[size][n])
        limit = int((size * sizes[i + 1]) ** 0.5) if i + 1 < len(sizes) else 0
        if found and found[-1][0] == name:
            found.pop()
        found.append((name, limit))
    return found


def line(collective: str, choices: Sequence[tuple[str, int]]) -> str:
    """The choices as LWCC_TUNED has them."""
    return ",".join(f"{collective}={name}" + (f"@{limit}" if limit else "") for name, limit in choices)


def run(args: argparse.Namespace) -> int:
    """Measure, print and store. Returns 1 if a result was wrong, in which case nothing is stored."""
    if not (args.transport or args.net):
        raise ValueError("lwcc tune: it is for a wire; give --net or --transport tcp")
    args.sizes = bench.sizes_between(bench.parse_size(args.b), bench.parse_size(args.e), args.f)
    args.collective, args.dtype, args.in_place, args.registered = "allreduce", "float32", True, False
    args.algorithm = ",".join(inspection.algorithms("allreduce"))
    rows = [row for _ in range(args.rounds) for row in bench.run_engine(args, "own")]
    times: dict[int, dict[str, float]] = {}
    for row in rows:
        cell = times.setdefault(row["size"], {})
        cell[row["algorithm"]] = min(row["t_med"], cell.get(row["algorithm"], row["t_med"]))
    choices = choose(times)
    for size, cell in sorted(times.items()):
        ranking = sorted(cell, key=lambda name: cell[name])
        print(f"{size:>12}  " + "  ".join(f"{name} {cell[name] * 1e6:.1f}" for name in ranking) + "  us")
    if any(row["wrong"] for row in rows):
        print("# not stored: there were wrong results")
        return 1
    store(args.np, wire_of(args.net or ""), line("allreduce", choices))
    return 0


def store(ranks: int, wire: str, text: str) -> None:
    """Keep a table beside the cost of the wire, for jobs over the same one (see `wire_of`)."""
    bench.keep({"tuned": {f"{ranks} {wire}".strip(): text}})
    where = f"--net of the same wire ({wire})" if wire else "a wire of this machine"
    print(f"# LWCC_TUNED={text}\n# stored in {bench.cost_file()} for jobs of {ranks} ranks over {where}")


def add_parser(commands: Any) -> None:
    """Add the command to `lwcc`."""
    parser = commands.add_parser(
        "tune", help="find the fastest algorithm for each size over a wire, and keep it", description=ABOUT,
        epilog=EXAMPLE,
    )  # fmt: skip
    add = parser.add_argument
    add("-np", dest="np", type=int, default=2, metavar="N", help="ranks (default 2)")
    add("-b", default="1K", metavar="BYTES", help="first size (default 1K)")
    add("-e", default="16M", metavar="BYTES", help="last size; suffixes K, M, G (default 16M)")
    add("-f", type=float, default=4.0, metavar="X", help="each size is X times the one before (default 4)")
    add("--rounds", type=int, default=3, metavar="R", help="launches, of which the best counts (default 3)")
    add("--budget", type=float, default=0.05, metavar="S", help="seconds for one size of one round (default 0.05)")
    add("--limit", type=float, default=300.0, metavar="S", help="seconds for one round (default 300)")
    add("--transport", choices=("tcp",), help="LWCC's transport on this machine")
    add("--net", help="a network of namespaces, as for lwccrun")
    parser.set_defaults(run=run)
