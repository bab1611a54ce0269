"""horovodrun's flags: which set a variable here, and which are refused and why. Data, read by args.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")


class Mapped(NamedTuple):
    """A flag that becomes a variable of every rank. convert: raises ValueError with what was expected."""

    names: tuple[str, ...]
    variable: str
    metavar: str
    convert: Callable[[str], str]
    help: str


class Refused(NamedTuple):
    """A flag of horovodrun without meaning here. nargs: how many values it takes there."""

    names: tuple[str, ...]
    nargs: int
    instead: str


def _number(text: str, scale: float = 1.0) -> str:
    try:
        value = float(text) * scale
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e15:
        raise ValueError("expected a number of 0 or more")
    return str(int(value)) if value == int(value) else repr(value)


def _megabytes(text: str) -> str:
    return str(int(float(_number(text, 1 << 20))))


def _whole(text: str) -> str:
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise ValueError("expected a whole number")
    return str(int(text))


def _log_level(text: str) -> str:
    if text.lower() not in LOG_LEVELS:
        raise ValueError(f"expected one of {', '.join(LOG_LEVELS)}")
    return text.lower()


def _one_interface(text: str) -> str:
    if not text or "," in text:
        raise ValueError("expected one interface (eth0) or subnet (10.0.0.0/8), not a list: each rank uses one")
    return text


def _algorithm(text: str) -> str:
    return ",".join(_choice(part) for part in text.split(","))


def _choice(text: str) -> str:
    """Check one choice; files get absolute paths, because ranks may change their folder before they read them."""
    collective, equals, name = text.rpartition("=")
    if not name or bool(equals) != bool(collective) or not (equals or ":" in name):
        raise ValueError("expected COLLECTIVE=NAME (allreduce=ring) or FILE.py:NAME, or several separated by commas")
    where, colon, name = name.rpartition(":")
    if not colon or not where.endswith(".py"):
        return text
    if not os.path.isfile(where):
        raise ValueError(f"there is no file {where}")
    return f"{collective}{equals}{os.path.abspath(where)}:{name}"


def _plugin(text: str) -> str:
    paths = [os.path.abspath(path) for path in text.split(os.pathsep) if path]
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing or not paths:
        raise ValueError(f"there is no file {', '.join(missing) or repr(text)}")
    return os.pathsep.join(paths)


MAPPED = (
    Mapped(
        ("--algorithm",),
        "LWCC_ALGORITHM",
        "CHOICE",
        _algorithm,
        "force an algorithm: allreduce=ring, mine.py:my_ring (see `lwcc check`)",
    ),
    Mapped(("--plugin",), "LWCC_PLUGIN", "LIB.so", _plugin, "load algorithms that `lwcc plugin build` has made"),
    Mapped(
        ("--fusion-threshold-mb",), "LWCC_FUSION_THRESHOLD", "MB", _megabytes, "most bytes of one bucket; 0: no fusion"
    ),
    Mapped(("--cache-capacity",), "LWCC_CACHE_CAPACITY", "N", _whole, "most remembered negotiation answers"),
    Mapped(
        ("--network-interface", "--network-interfaces", "--nic"),
        "LWCC_IFACE",
        "NAME|CIDR",
        _one_interface,
        "interface or subnet for TCP",
    ),
    Mapped(("--timeline-filename",), "LWCC_TIMELINE", "FILE", str, "record a timeline of the collectives"),
    Mapped(
        ("--stall-check-warning-time-seconds",),
        "LWCC_STALL_WARN",
        "S",
        _number,
        "report a tensor that some ranks lack after S seconds; 0: never",
    ),
    Mapped(
        ("--stall-check-shutdown-time-seconds",),
        "LWCC_STALL_ABORT",
        "S",
        _number,
        "and fail it on all ranks after S seconds; 0: never",
    ),
    Mapped(("--log-level",), "LWCC_LOG_LEVEL", "LEVEL", _log_level, "TRACE, DEBUG, INFO, WARNING, ERROR or FATAL"),
)

_NO_AUTOTUNE = "there is no autotuner; leave it out, or force a choice with --algorithm and --fusion-threshold-mb"
_NO_ELASTIC = "elastic jobs are not built yet; give a fixed -np"
_CHOSEN = "algorithms are chosen by cost; leave it out, or force one with --algorithm allreduce=NAME"
_NOT_OURS = "LWCC uses neither MPI, NCCL nor Gloo; leave it out"
_LOG_FORM = "log lines have one form; leave it out (--log-level chooses which are shown)"

REFUSED = (
    Refused(("--max-restarts",), 1, _NO_ELASTIC),
    Refused(("--config-file",), 1, "write the flags on the command line, or set LWCC_* variables"),
    Refused(("--disable-cache",), 0, "there are no cached checks before the start; leave it out"),
    Refused(("--cycle-time-ms",), 1, "there is no cycle: a tensor starts when every rank has it; leave it out"),
    Refused(("--hierarchical-allreduce", "--no-hierarchical-allreduce"), 0, _CHOSEN),
    Refused(("--hierarchical-allgather", "--no-hierarchical-allgather"), 0, _CHOSEN),
    Refused(("--torus-allreduce", "--no-torus-allreduce"), 0, _CHOSEN),
    Refused(("--autotune", "--no-autotune"), 0, _NO_AUTOTUNE),
    Refused(("--autotune-log-file",), 1, _NO_AUTOTUNE),
    Refused(("--autotune-warmup-samples", "--autotune-steps-per-sample"), 1, _NO_AUTOTUNE),
    Refused(("--autotune-bayes-opt-max-samples", "--autotune-gaussian-process-noise"), 1, _NO_AUTOTUNE),
    Refused(("--min-np", "--max-np", "--min-num-proc", "--max-num-proc", "--slots-per-host"), 1, _NO_ELASTIC),
    Refused(("--elastic-timeout", "--reset-limit", "--host-discovery-script"), 1, _NO_ELASTIC),
    Refused(("--blacklist-cooldown-range",), 2, _NO_ELASTIC),
    Refused(("--timeline-mark-cycles", "--no-timeline-mark-cycles"), 0, "there is no cycle to mark; leave it out"),
    Refused(("--mpi-args",), 1, _NOT_OURS),
    Refused(("--mpi-threads-disable", "--no-mpi-threads-disable", "--mpi", "--gloo", "--jsrun"), 0, _NOT_OURS),
    Refused(("--num-nccl-streams", "--gloo-timeout-seconds"), 1, _NOT_OURS),
    Refused(("--tcp",), 0, "set LWCC_TRANSPORT with -x: -x LWCC_TRANSPORT=tcp"),
    Refused(
        ("--binding-args", "--thread-affinity"), 1, "ranks are not bound to cores; use taskset in front of lwccrun"
    ),
    Refused(("--log-with-timestamp", "--log-without-timestamp", "--log-hide-timestamp"), 0, _LOG_FORM),
    Refused(("-prefix-timestamp", "--prefix-output-with-timestamp"), 0, _LOG_FORM),
)
