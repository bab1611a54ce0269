"""`python -m lwcc`, `lwcc`: look at the library, its algorithms and their plans."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence
from typing import Optional


def _info(args: argparse.Namespace) -> int:
    import numpy

    import lwcc
    from lwcc import inspection, ops

    print(f"lwcc      {lwcc.__version__} (core {inspection.version()})")
    print(f"python    {platform.python_version()} on {platform.machine()}")
    print(f"numpy     {numpy.__version__}")
    for collective in ops.COLLECTIVE_NAMES:
        print(f"{collective:<14}{', '.join(lwcc.algorithms(collective)) or '-'}")
    return 0


def _algos(args: argparse.Namespace) -> int:
    from lwcc import inspection, ops

    for collective in [args.collective] if args.collective else ops.COLLECTIVE_NAMES:
        for name, about in inspection.algorithms(collective).items():
            print(f"{collective:<14}{name:<20}{about}")
    return 0


def _plan(args: argparse.Namespace) -> int:
    from lwcc import inspection

    print(inspection.plan_text(args.collective, args.name, args.rank, args.size), end="")
    return 0


def _verify(args: argparse.Namespace) -> int:
    from lwcc import inspection, ops
    from lwcc.errors import PlanRefused, Unsupported

    refused = 0
    for collective in ops.COLLECTIVE_NAMES:
        for name in inspection.algorithms(collective):
            proved = 0
            for size in range(1, args.max_size + 1):
                try:
                    inspection.verify(collective, name, size)
                    proved += 1
                except Unsupported:
                    continue
                except PlanRefused as error:
                    print(f"{collective} {name}, {size} ranks: REFUSED: {error}")
                    refused += 1
            print(f"{collective:<14}{name:<20}{proved} sizes proved")
    return 1 if refused else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lwcc", description="Look at LWCC, its algorithms and their plans.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions and algorithms").set_defaults(run=_info)
    algos = commands.add_parser("algos", help="the algorithms, one line each")
    algos.add_argument("collective", nargs="?")
    algos.set_defaults(run=_algos)
    plan = commands.add_parser("plan", help="what one rank does")
    plan.add_argument("collective")
    plan.add_argument("name")
    plan.add_argument("rank", type=int)
    plan.add_argument("size", type=int)
    plan.set_defaults(run=_plan)
    verify = commands.add_parser("verify", help="prove every algorithm for 1..N ranks")
    verify.add_argument("--max-size", type=int, default=17, metavar="N")
    verify.set_defaults(run=_verify)
    from lwcc import bench, report

    bench.add_parser(commands)
    report.add_parser(commands)
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command line; return the exit code: 0 fine, 1 a proof failed, 2 wrong usage."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except (ValueError, RuntimeError) as error:
        print(f"lwcc: {str(error).removeprefix('lwcc: ')}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
