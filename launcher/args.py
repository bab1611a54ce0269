"""The command line: argparse to a frozen LaunchSpec. Usage errors exit with 2, as argparse does."""

from __future__ import annotations

import argparse
import os
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from lwcc.launcher import slurm
from lwcc.launcher.engines import ENGINES, STARTERS, Settings, engine_list
from lwcc.launcher.flags import MAPPED, REFUSED, Refused
from lwcc.launcher.hosts import Host, HostError, merge_local, parse_hostfile, parse_hosts, used
from lwcc.launcher.logdir import fault
from lwcc.launcher.net import NetSpec, parse_net
from lwcc.launcher.spawn import CannotRun

MAX_RANKS = 4096
MAX_RUNS = 1000  # of --repeat
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
    starter: str = "local"  # local, ssh or slurm
    agents: tuple[str, ...] = ()  # the hosts whose ranks an agent starts
    ssh: str = "ssh"  # the command, with options
    ssh_port: str | None = None
    ssh_identity: str | None = None
    settings: Settings | None = None  # of the engine; None: as it comes
    baseline: tuple[str, ...] = ()  # engines to run beside LWCC's own
    repeat: int = 1
    mpi_best: bool = False
    mpi_settings: str | None = None  # by name; resolved when the MPI is known
    net: NetSpec | None = None
    prefixes: tuple[tuple[str, ...], ...] = ()  # what each rank's command starts with, where it has a node
    places: tuple[str, ...] = ()  # and that node's name
    crew: str = ""  # the folder of the pipes of ranks that an MPI's launcher starts


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


class _Engine(argparse.Action):
    """One word says who starts the ranks, or who carries the collectives."""

    def __call__(self, parser: argparse.ArgumentParser, ns: Any, value: Any, option: str | None = None) -> None:
        setattr(ns, "starter" if value in STARTERS else "engine", value)


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from lwcc.launcher.info import version

        print(f"lwccrun {version()}")
        parser.exit(0)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value


def _count(what: str, least: int, most: int) -> Callable[[str], int]:
    """Return what reads a whole number of this range; what: the words for it in the refusal."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what} ({least} to {most})")
        return int(text)

    return read


_ranks = _count("a number of ranks", 1, MAX_RANKS)
_rank = _count("a rank", 0, MAX_RANKS - 1)
_runs = _count("a number of runs", 1, MAX_RUNS)


def build_parser() -> argparse.ArgumentParser:
    """The parser, with its help in groups."""
    parser = argparse.ArgumentParser(
        prog="lwccrun",
        usage="lwccrun -np N [options] command [args...]",
        description="Start N ranks of a program, here or on several hosts; watch them; say which one failed and why.",
        epilog=_EPILOG,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=34, width=118),
        allow_abbrev=False,
    )
    parser.set_defaults(variables={}, engine="own", starter=None)
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
    group.add_argument(
        "-np", "--num-proc", type=_ranks, dest="np", metavar="N", help="number of ranks (required outside Slurm)"
    )
    group.add_argument("-H", "--hosts", metavar="HOST:SLOTS,...", help="where, by ssh; n[1-4]:8 are four hosts")
    group.add_argument("-hostfile", "--hostfile", metavar="FILE", help="the same from a file: host:4 or host slots=4")
    group.add_argument("-p", "--ssh-port", metavar="PORT", help="of sshd on the hosts")
    group.add_argument("-i", "--ssh-identity-file", dest="ssh_identity", metavar="FILE", help="key for ssh")
    group.add_argument("--ssh", default="ssh", metavar="COMMAND", help='ssh, or with options: "ssh -F my_config"')
    group.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a Python module")
    group.add_argument(
        "-x", dest="export", action="append", default=[], metavar="VAR[=VALUE]", help="set a variable of the ranks"
    )


def _add_output(group: Any) -> None:
    group.add_argument("--no-tag", action="store_true", help="pass the ranks' bytes on as they are, without [rank]")
    group.add_argument("--only-rank", type=_rank, metavar="R", help="show only this rank's output")
    where = group.add_mutually_exclusive_group()
    where.add_argument("--log-dir", metavar="DIR", help="keep DIR/rank-R/stdout.log, stderr.log and DIR/run.json")
    where.add_argument("--output-filename", metavar="DIR", help="the same as DIR/rank.R/stdout and stderr")


def _add_comparison(group: Any) -> None:
    group.add_argument(
        "--baseline", type=engine_list, default=(), metavar="ENGINES",
        help="run the script on LWCC and on each of these (mpi, gloo), and print one table",
    )  # fmt: skip
    group.add_argument("--repeat", type=_runs, default=1, metavar="R", help="with --baseline: R interleaved runs each")
    group.add_argument("--mpi-best", action="store_true", help="with --baseline mpi: also its best known settings")
    group.add_argument(
        "--net", type=parse_net, metavar="SPEC",
        help="put the ranks on nodes of a network of namespaces: 1gbit, or nodes=4,rate=1gbit,cc=bbr",
    )  # fmt: skip
    group.add_argument(
        "--engine", choices=(*STARTERS, *ENGINES), action=_Engine,
        help="who starts the ranks: local, ssh, slurm (default: what -H and the environment say); or who carries the "
        "collectives: own (the default), mpi (and starts the ranks), gloo",
    )  # fmt: skip
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
        _check_log_dir(parser, ns)
    hosts, starter = _find_hosts(parser, ns)
    if not (ns.np or hosts or ns.check_build):
        parser.error("how many ranks? Give -np N")
    size = ns.np or (sum(host.slots for host in hosts) if hosts else 1)
    if ns.only_rank is not None and not 0 <= ns.only_rank < size:
        parser.error(f"--only-rank {ns.only_rank}: the ranks are 0 to {size - 1}")
    return LaunchSpec(
        np=size,
        command=tuple(command),
        module=ns.module is not None,
        hosts=hosts or (Host(socket.gethostname(), size),),
        starter=starter,
        agents=tuple(h.name for h in used(hosts, size) if starter != "local" and not _starts_here(h.name, ns, starter)),
        ssh=ns.ssh,
        ssh_port=ns.ssh_port,
        ssh_identity=ns.ssh_identity,
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


def _check_log_dir(parser: argparse.ArgumentParser, ns: Any) -> None:
    option, path = ("--log-dir", ns.log_dir) if ns.log_dir else ("--output-filename", ns.output_filename)
    wrong = fault(path) if path else ""
    if wrong:
        parser.exit(2, f"lwccrun: {option} {path}: {wrong}\n")


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


def _find_hosts(parser: argparse.ArgumentParser, ns: Any) -> tuple[tuple[Host, ...], str]:
    """The hosts (none: this machine, as many ranks as are wanted), and who starts the ranks there."""
    if ns.hosts is not None and ns.hostfile is not None:
        parser.error("give -H or --hostfile, not both")
    try:
        hosts = _given_hosts(ns)
        starter = ns.starter or ("local" if all(is_local(host.name) for host in hosts) else "ssh")
        here = ns.net is not None or ns.engine == "mpi" or ns.baseline  # these start their ranks on this machine
        if not hosts and (starter == "slurm" or (ns.starter is None and not here)):
            hosts = slurm.allocation(os.environ)
            starter = "slurm" if hosts else starter
        if starter == "slurm" and not slurm.allocation(os.environ):
            parser.error("--engine slurm: this is no job of Slurm's (no SLURM_JOB_NODELIST); use salloc or sbatch")
    except (HostError, CannotRun, OSError) as error:
        parser.error(str(error))
    if starter == "ssh" and not hosts:
        parser.error("--engine ssh: on which hosts? Give -H or --hostfile")
    remote = [host.name for host in hosts if not is_local(host.name)]
    if starter == "local" and remote:
        parser.error(f"--engine local, but {', '.join(remote[:5])} is not this machine (localhost)")
    if here and (remote or starter != "local"):
        parser.error("--net, --baseline and --engine mpi start their ranks on this machine; leave out the hosts")
    slots = sum(host.slots for host in hosts)
    if hosts and ns.np and slots < ns.np:
        first = hosts[0].name
        parser.error(f"-np {ns.np} needs {ns.np} slots, but the hosts have {slots} (write {first}:{ns.np})")
    forced = starter == "slurm" or ns.starter == "ssh"  # then this machine is reached like the others
    return (hosts if forced else merge_local(hosts, is_local, socket.gethostname())), starter


def _starts_here(name: str, ns: Any, starter: str) -> bool:
    return starter == "ssh" and ns.starter is None and is_local(name)


def _given_hosts(ns: Any) -> tuple[Host, ...]:
    if ns.hosts is not None:
        return parse_hosts(ns.hosts, "-H")
    if ns.hostfile is None:
        return ()
    with open(ns.hostfile, encoding="utf-8", errors="replace") as file:
        return parse_hostfile(file.read(), ns.hostfile)


def is_local(name: str) -> bool:
    """Does name surely mean this machine? Asks no name server."""
    own = socket.gethostname().lower()
    plain = name.lower()
    return plain in ("localhost", "::1", own, own.split(".")[0]) or bool(re.fullmatch(r"127(\.\d{1,3}){3}", plain))
