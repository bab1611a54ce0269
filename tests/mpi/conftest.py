"""The two MPIs, each in an environment of its own, because their wheels clash in one."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any, NamedTuple, Optional

import pytest

from lwcc.launcher.mpi import find_mpi
from lwcc.launcher.spawn import CannotRun

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = {"openmpi": ("--allow-run-as-root", "--oversubscribe", "-np"), "mpich": ("-np",)}


class Mpi(NamedTuple):
    """An environment with an MPI: its interpreter, and the command that starts ranks, but for their number."""

    name: str
    python: str
    start: tuple[str, ...]


def here(name: str) -> Optional[Mpi]:
    """This environment, if it has that MPI."""
    try:
        found = find_mpi()
    except CannotRun:
        return None
    return Mpi(name, sys.executable, (found.launcher, *OPTIONS[name])) if found.kind == name else None


def make(name: str) -> Mpi:
    """Make an environment in build/, unless it is there: it sees the packages of this one, and adds its own."""
    home = ROOT / "build" / f"env-{name}-{sys.version_info[0]}.{sys.version_info[1]}"
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        venv.create(home, with_pip=True)
        command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "mpi4py", name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            pytest.skip(f"neither mpi4py nor the wheel {name} can be installed here: {done.stderr[-300:]}")
        own = subprocess.run(
            [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        Path(own.stdout.strip(), "lwcc_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
        (home / "ready").write_text("")
    return Mpi(name, str(python), (str(home / "bin" / "mpiexec"), *OPTIONS[name]))


@pytest.fixture(scope="session")
def openmpi() -> Mpi:
    """Open MPI: handles are pointers."""
    return here("openmpi") or make("openmpi")


@pytest.fixture(scope="session")
def mpich() -> Mpi:
    """MPICH: handles are numbers."""
    return here("mpich") or make("mpich")


@pytest.fixture
def environment() -> dict[str, str]:
    """Variables of a rank, without those of an MPI that runs the tests."""
    gone = ("OMPI_", "PMI", "LWCC_", "PRTE_")
    kept: dict[str, Any] = {k: v for k, v in os.environ.items() if not k.startswith(gone)}
    return {**kept, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
