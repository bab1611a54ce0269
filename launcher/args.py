"""The command line: argparse to a frozen LaunchSpec. Usage errors exit with 2, as argparse does."""

from __future__ import annotations

import argparse
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from lwcc.launcher.engines import ENGINES, Settings, engine_list
from lwcc.launcher.flags import MAPPED, REFUSED, Refused
from lwcc.launcher.hosts import Host, HostError, parse_hostfile, parse_hosts
from lwcc.launcher.net import NetSpec, parse_net

MAX_RANKS = 4096
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = re.compile(
    r"LWCC_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|RENDEZVOUS|SECRET|GENERATION|JOB_ID)|RANK|WORLD_SIZE|LOCAL_RANK"
    r"|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|HOROVOD_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|CROSS_RANK|CROSS_SIZE|HOSTNAME)"
)

_EPILOG = """\
what a command is:
  train.py ARGS      run by this Python interpreter         -m pkg.mod ARGS    the same, as python -m
  anything else      executed as it is, found on PATH       options after the command belong to the command

input, signals, ends:
  Rank 0 reads lwccrun's standard input, the others nothing. Python ranks print unbuffered. SIGTERM, SIGHUP, SIGUSR1,
  SIGUSR2 and stop/continue are passed on. Ctrl-C interrupts the ranks, a second one kills them. The first rank that
  fails ends the job: the others get SIGTERM (after 2 s to report it themselves, if they use LWCC), and SIGKILL after
  --grace.
  Nothing in the ranks' process groups outlives lwccrun.

exit code:
  0 all ranks succeeded    N code of the first failing rank    128+N it died by signal N    2 wrong usage
  124 a time limit         130 Ctrl-C       143 lwccrun got SIGTERM       127, 126 command not found, not executable

examples:
  lwccrun -np 4 train.py --epochs 3
  lwccrun -np 2 --only-rank 0 --log-dir logs -x SEED=1 -m mypackage.train
  lwccrun -np 4 --algorithm allreduce=ring --dry-run train.py
  lwccrun -np 2 --baseline mpi,gloo --repeat 3 train.py       the same script on each engine, and a table
"""


@dataclass(frozen=True)
class LaunchSpec:
    """What to run and how. Times are seconds; None means no limit."""

    np: int
    command: tuple[str, ...] = ()
    module: bool = False  # command[0] is a module's name, as for python -m
    hosts: tuple[Host, ...] = ()
    extra_env: dict[str, str] = field(default_factory=dict)  # from -x and from flags that set variables
    grace: float = 5.0
    timeout: float | None = None
    start_timeout: float | None = None
    tag: bool = True
    only_rank: int | None = None
    log_dir: str | None = None
    horovod_log_layout: bool = False
    verbose: bool = False
    dry_run: bool = False
    check_build: bool = False
    engine: str = "own"
    settings: Settings | None = None  # of the engine; None: as it comes
    baseline: tuple[str, ...] = ()  # engines to run beside LWCC's own
    repeat: int = 1
    mpi_best: bool = False
    mpi_settings: str | None = None  # by name; resolved when the MPI is known
    net: NetSpec | None = None
    prefixes: tuple[tuple[str, ...], ...] = ()  # what each rank's command starts with, where it has a node


class _Refuse(argparse.Action):
    """Refuses a flag by name, with the replacement."""

    def __init__(self, option_strings: Sequence[str], dest: str, refused: Refused) -> None:
        super().__init__(option_strings, dest, nargs=refused.nargs, help=argparse.SUPPRESS)
        self.instead = refused.instead

    def __call__(self, parser: argparse.ArgumentParser, _ns: Any, _values: Any, option: str | None = None) -> NoReturn:
        parser.error(f"{option} is not supported: {self.instead}")


class _SetVariable(argparse.Action):
    """Converts the value and adds it to the ranks' variables."""

    def __init__(self, option_strings: Sequence[str], dest: str, mapped: Any, help: str, metavar: str) -> None:
        super().__init__(option_strings, dest, help=help, metavar=metavar)
        self.mapped = mapped

    def __call__(self, parser: argparse.ArgumentParser, ns: Any, value: Any, option: str | None = None) -> None:
        try:
            text = self.mapped.convert(value)
        except ValueError as error:
            parser.error(f"{option} {value!r}: {error}")
        if self.mapped.variable == "LWCC_TIMELINE":
            text = os.path.abspath(text)
        ns.variables = {**ns.variables, self.mapped.variable: text}


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from lwcc.launcher.info import version

        print(f"lwccrun {version()}")
        parser.exit(0)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value


def _ranks(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= MAX_RANKS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks (1 to {MAX_RANKS})")
    return int(text)


def build_parser() -> argparse.ArgumentParser:
    """The parser, with its help in groups."""
    parser = argparse.ArgumentParser(
        prog="lwccrun",
        usage="lwccrun -np N [options] command [args...]",
        description="Start N ranks of a program on this machine, watch them, and say which one failed and why.",
        epilog=_EPILOG,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=34, width=118),
        allow_abbrev=False,
    )
    parser.set_defaults(variables={})
    _add_placement(parser.add_argument_group("what and where"))
    _add_output(parser.add_argument_group("output"))
    _add_limits(parser.add_argument_group("time limits"))
    library = parser.add_argument_group("library (each sets an LWCC_* variable of the ranks)")
    for row in MAPPED:
        library.add_argument(*row.names, action=_SetVariable, mapped=row, help=row.help, metavar=row.metavar)
    library.add_argument("--no-stall-check", action="store_true", help="neither report nor fail stalled tensors")
    library.add_argument("--stall-check", action="store_true", help=argparse.SUPPRESS)  # on by default
    _add_comparison(parser.add_argument_group("comparison"))
    about = parser.add_argument_group("about")
    about.add_argument("--dry-run", action="store_true", help="print placement, commands and variables; start nothing")
    about.add_argument("-cb", "--check-build", action="store_true", help="print what this installation can do")
    about.add_argument("--verbose", action="store_true", help="say what lwccrun does")
    about.add_argument("-v", "--version", action=_Version, help="print the version")
    for refused in REFUSED:
        for name in refused.names:
            parser.add_argument(name, action=_Refuse, dest="refused", refused=refused)
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _add_placement(group: Any) -> None:
    group.add_argument("-np", "--num-proc", type=_ranks, dest="np", metavar="N", help="number of ranks (required)")
    group.add_argument("-H", "--hosts", metavar="HOST:SLOTS,...", help="where; only this machine's names are built yet")
    group.add_argument("-hostfile", "--hostfile", metavar="FILE", help="the same from a file: host:4 or host slots=4")
    group.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a Python module")
    group.add_argument(
        "-x", dest="export", action="append", default=[], metavar="VAR[=VALUE]", help="set a variable of the ranks"
    )


def _add_output(group: Any) -> None:
    group.add_argument("--no-tag", action="store_true", help="pass the ranks' bytes on as they are, without [rank]")
    group.add_argument("--only-rank", type=int, metavar="R", help="show only this rank's output")
    where = group.add_mutually_exclusive_group()
    where.add_argument("--log-dir", metavar="DIR", help="keep DIR/rank-R/stdout.log, stderr.log and DIR/run.json")
    where.add_argument("--output-filename", metavar="DIR", help="the same as DIR/rank.R/stdout and stderr")


def _add_comparison(group: Any) -> None:
    group.add_argument(
        "--baseline", type=engine_list, default=(), metavar="ENGINES",
        help="run the script on LWCC and on each of these (mpi, gloo), and print one table",
    )  # fmt: skip
    group.add_argument("--repeat", type=_ranks, default=1, metavar="R", help="with --baseline: R interleaved runs each")
    group.add_argument("--mpi-best", action="store_true", help="with --baseline mpi: also its best known settings")
    group.add_argument(
        "--net", type=parse_net, metavar="SPEC",
        help="put the ranks on nodes of a network of namespaces: 1gbit, or nodes=4,rate=1gbit,cc=bbr",
    )  # fmt: skip
    group.add_argument("--engine", choices=ENGINES, default="own", help="who carries the collectives (default own)")
    group.add_argument("--mpi-settings", metavar="NAME", help="with --engine mpi: one set of those of --mpi-best")


def _add_limits(group: Any) -> None:
    group.add_argument("--timeout", type=_seconds, metavar="S", help="end the job after S seconds, with code 124")
    group.add_argument(
        "--start-timeout", type=_seconds, metavar="S", help="end it if a rank has not called init by then; names them"
    )
    group.add_argument(
        "--grace", type=_seconds, default=5.0, metavar="S", help="between SIGTERM and SIGKILL (default 5)"
    )


def parse(argv: Sequence[str]) -> LaunchSpec:
    """Parse argv (without the program's name). Exits with code 2 and one clear line on a usage error."""
    parser = build_parser()
    ns = parser.parse_args(list(argv))
    command = ns.module if ns.module is not None else ns.command
    if command and command[0] == "--" and ns.module is None:
        command = command[1:]
    if not ns.check_build:
        _check_required(parser, ns, command)
    size = ns.np or 1
    if ns.only_rank is not None and not 0 <= ns.only_rank < size:
        parser.error(f"--only-rank {ns.only_rank}: the ranks are 0 to {size - 1}")
    return LaunchSpec(
        np=size,
        command=tuple(command),
        module=ns.module is not None,
        hosts=_find_hosts(parser, ns, size),
        extra_env=_find_variables(parser, ns),
        grace=ns.grace,
        timeout=ns.timeout,
        start_timeout=ns.start_timeout,
        tag=not ns.no_tag,
        only_rank=ns.only_rank,
        log_dir=ns.log_dir or ns.output_filename,
        horovod_log_layout=ns.output_filename is not None,
        verbose=ns.verbose,
        dry_run=ns.dry_run,
        check_build=ns.check_build,
        engine=ns.engine,
        baseline=ns.baseline,
        repeat=ns.repeat,
        mpi_best=ns.mpi_best,
        mpi_settings=ns.mpi_settings,
        net=ns.net,
    )


def _check_required(parser: argparse.ArgumentParser, ns: Any, command: Sequence[str]) -> None:
    if command and command[0].startswith("-") and ns.module is None:
        parser.error(f"unknown option {command[0]} (options of the program go after its name; see lwccrun --help)")
    if ns.np is None:
        parser.error("how many ranks? Give -np N")
    if ns.baseline and ns.engine != "own":
        parser.error("give --baseline or --engine, not both: the baseline runs on LWCC's own engine too")
    if not ns.baseline and (ns.repeat != 1 or ns.mpi_best):
        parser.error("--repeat and --mpi-best go with --baseline")
    if ns.mpi_settings is not None and ns.engine != "mpi":
        parser.error("--mpi-settings goes with --engine mpi")
    if ns.mpi_best and "mpi" not in ns.baseline:
        parser.error("--mpi-best needs mpi among the engines of --baseline")
    if not command:
        parser.error("-m needs a module" if ns.module is not None else "what to run? Give a script or a command")


def _find_variables(parser: argparse.ArgumentParser, ns: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    if ns.no_stall_check:
        found.update(LWCC_STALL_WARN="0", LWCC_STALL_ABORT="0")
    found.update(ns.variables)
    if ns.start_timeout is not None:
        found["LWCC_START_TIMEOUT"] = f"{ns.start_timeout:g}"
    for text in ns.export:
        name, equals, value = text.partition("=")
        if not _VARIABLE.fullmatch(name):
            parser.error(f"-x {text}: {name!r} is not a variable's name")
        if _RESERVED.fullmatch(name):
            parser.error(f"-x {name}: lwccrun itself sets {name}, differently for each job or rank")
        if not equals and name not in os.environ:
            parser.error(f"-x {name}: the variable is not set here; give -x {name}=VALUE")
        found[name] = value if equals else os.environ[name]
    return found


def _find_hosts(parser: argparse.ArgumentParser, ns: Any, size: int) -> tuple[Host, ...]:
    if ns.hosts is not None and ns.hostfile is not None:
        parser.error("give -H or --hostfile, not both")
    try:
        if ns.hosts is not None:
            hosts = parse_hosts(ns.hosts, "-H")
        elif ns.hostfile is not None:
            with open(ns.hostfile, encoding="utf-8", errors="replace") as file:
                hosts = parse_hostfile(file.read(), ns.hostfile)
        else:
            return (Host("localhost", size),)
    except (HostError, OSError) as error:
        parser.error(str(error))
    remote = [host.name for host in hosts if not is_local(host.name)]
    if remote:
        parser.error(f"only local runs are built yet, and {', '.join(remote[:5])} is not this machine (localhost)")
    slots = sum(host.slots for host in hosts)
    if slots < size:
        parser.error(f"-np {size} needs {size} slots, but the hosts have {slots} (write localhost:{size})")
    return hosts


def is_local(name: str) -> bool:
    """Does name surely mean this machine? Asks no name server."""
    own = socket.gethostname().lower()
    plain = name.lower()
    return plain in ("localhost", "::1", own, own.split(".")[0]) or bool(re.fullmatch(r"127(\.\d{1,3}){3}", plain))
