"""`python -m lwcc`, `lwcc`: look at the library, its algorithms and their plans; check, draw and price one's own."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Callable, Optional

if TYPE_CHECKING:
    from lwcc.plan import Topology

_SPEC = "mine.py:my_ring, package.module:name, allreduce=ring"


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
    from lwcc import catalogue

    if args.write:
        catalogue.write(args.write)
    else:
        print("\n".join(catalogue.table(args.collective, args.ranks, args.alpha_beta_gamma)))
    return 0


def _plan(args: argparse.Namespace) -> int:
    from lwcc import drawing, pricing
    from lwcc.authoring import find

    algorithm = find(args.algorithm)
    if args.rank is not None and not 0 <= args.rank < args.ranks:
        raise ValueError(f"lwcc: --rank {args.rank}: there are ranks 0 to {args.ranks - 1}")
    plans = algorithm.plans(args.ranks, _placed(args))
    if args.svg:
        drawing.write_svg(args.svg, plans, algorithm.name)
        print(f"wrote {args.svg}")
        return 0
    lines = drawing.one_rank(plans[args.rank]) if args.rank is not None else drawing.rounds(plans)
    print("\n".join([*lines, "", *pricing.report(algorithm, plans, args.alpha_beta_gamma)]))
    return 0


def _placed(args: argparse.Namespace) -> Topology:
    from lwcc.plan import Topology

    if args.nodes is not None:
        if len(args.nodes) != args.ranks:
            raise ValueError(
                f"lwcc: --nodes names {len(args.nodes)} nodes for {args.ranks} ranks; expected one for each"
            )
        return Topology(args.nodes)
    each = args.per_node or args.ranks
    return Topology([rank // each for rank in range(args.ranks)])


def _check(args: argparse.Namespace) -> int:
    from lwcc import checking

    real = [] if args.real == "none" else checking.parse_sizes(args.real)
    right = [checking.check(spec, checking.parse_sizes(args.ranks), real, print) for spec in args.algorithms]
    return 0 if all(right) else 1


def _verify(args: argparse.Namespace) -> int:
    from lwcc import checking, inspection, ops
    from lwcc.authoring import BuiltIn

    refused = False
    for collective in ops.COLLECTIVE_NAMES:
        for name in inspection.algorithms(collective):
            served, refusal = checking.prove(BuiltIn(collective, name), range(1, args.max_size + 1))
            refused |= refusal is not None
            print(
                f"{collective:<14}{name:<20}" + (refusal.text if refusal else f"proved for {checking.ranges(served)}")
            )
    return 1 if refused else 0


def _plugin_build(args: argparse.Namespace) -> int:
    from lwcc import plugins

    print(f"wrote {plugins.build(args.source, args.output, args.compiler)}")
    return 0


def _model(text: str) -> tuple[float, float, float]:
    parts = [float(part) for part in text.split(",")]
    if len(parts) != 3 or min(parts) < 0:
        raise argparse.ArgumentTypeError("expected three numbers: us per message, ns per byte sent, ns per byte added")
    return parts[0] * 1e-6, parts[1] * 1e-9, parts[2] * 1e-9


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= 1024:
            raise argparse.ArgumentTypeError(f"{text!r}: expected a number from {least} to 1024")
        return int(text)

    return number


def _labels(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: expected the node of each rank, such as 0,0,1")
    return [int(part) for part in parts]


def _add_plugins(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plugin", action="append", default=[], metavar="LIB.so", help="load its algorithms first")


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", dest="alpha_beta_gamma", type=_model, default=(15e-6, 0.4e-9, 0.05e-9), metavar="A,B,G",
        help="us per message, ns per byte sent, ns per byte added (default 15,0.4,0.05: a 20 Gb/s wire)",
    )  # fmt: skip
    _add_plugins(parser)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lwcc", description="Look at LWCC, its algorithms and their plans.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions and algorithms").set_defaults(run=_info)
    algos = commands.add_parser("algos", help="the algorithms, with conditions and costs")
    algos.add_argument("collective", nargs="?")
    algos.add_argument(
        "-p", dest="ranks", type=_at_least(2), default=8, metavar="P", help="number of ranks of the figures"
    )
    algos.add_argument("--write", metavar="FOLDER", help="write algorithms.md and a page for each into this folder")
    _add_model(algos)
    algos.set_defaults(run=_algos)
    plan = commands.add_parser("plan", help="a picture of an algorithm, and what it costs")
    plan.add_argument("algorithm", help=_SPEC)
    plan.add_argument("-p", dest="ranks", type=_at_least(2), required=True, metavar="P", help="number of ranks")
    plan.add_argument("--rank", type=int, metavar="R", help="only what this rank does, step by step")
    plan.add_argument(
        "--per-node", type=_at_least(1), metavar="N", help="place N ranks on each node; default: all on one"
    )
    plan.add_argument("--nodes", type=_labels, metavar="A,B,...", help="the node of each rank, such as 0,0,1")
    plan.add_argument("--svg", metavar="FILE", help="write a drawing")
    _add_model(plan)
    plan.set_defaults(run=_plan)
    check = commands.add_parser("check", help="prove an algorithm, and run it on real data")
    check.add_argument("algorithms", nargs="+", metavar="algorithm", help=_SPEC)
    check.add_argument("-p", dest="ranks", default="2-17,32,64", metavar="P", help="ranks to prove (2-17,32,64)")
    check.add_argument("--real", default="2,3,4", metavar="N", help="processes to run (2,3,4), or none")
    _add_plugins(check)
    check.set_defaults(run=_check)
    verify = commands.add_parser("verify", help="prove every built-in algorithm for 1..N ranks")
    verify.add_argument("--max-size", type=int, default=17, metavar="N")
    verify.set_defaults(run=_verify)
    plugin = commands.add_parser("plugin", help="algorithms in C").add_subparsers(dest="what", required=True)
    build = plugin.add_parser("build", help="make a plugin of C files, as in core/src/algo")
    build.add_argument("source", nargs="+", metavar="FILE.c")
    build.add_argument("-o", dest="output", metavar="LIB.so", help="default: lib<first file>.so in this folder")
    build.add_argument("--compiler", default="", metavar="CC", help="default: $CC, or cc")
    build.set_defaults(run=_plugin_build)
    from lwcc import bench, doctor, kubernetes, report, simulation, tune

    bench.add_parser(commands)
    doctor.add_parser(commands)
    kubernetes.add_parser(commands)
    tune.add_parser(commands)
    report.add_parser(commands)
    simulation.add_parser(commands)
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command line; return the exit code: 0 fine, 1 a proof or a trial failed, 2 wrong usage."""
    args = _parser().parse_args(argv)
    plugins = getattr(args, "plugin", [])
    return _in_child(args, plugins) if plugins else _run(args, plugins)


def _in_child(args: argparse.Namespace, plugins: Sequence[str]) -> int:
    """Run a command where a plugin that crashes ends a child, not the tool without a word."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = _run(args, plugins)
        sys.stdout.flush()
        os._exit(code)
    status = os.waitpid(child, 0)[1]
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    name = signal.Signals(os.WTERMSIG(status)).name
    print(f"lwcc: code of {', '.join(plugins)} crashed ({name}); see its build and chunks", file=sys.stderr)
    return 1


def _run(args: argparse.Namespace, plugins: Sequence[str]) -> int:
    try:
        for path in plugins:
            from lwcc import choosing

            choosing.load_plugin(path)
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `| head`; what is left goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except (ValueError, RuntimeError, OSError) as error:
        print(("" if str(error).startswith(("lwcc: ", "lwcc ")) else "lwcc: ") + str(error), file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
