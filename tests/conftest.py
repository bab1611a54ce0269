"""Shared by all tests: real ranks through the launcher, with a deadline and every rank's tail on failure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, Optional, Union

import pytest

ROOT = Path(__file__).resolve().parent.parent
# ways between all pairs of ranks, as variables of a job
WIRES = {
    "tcp": {"LWCC_TRANSPORT": "tcp"},
    "ucx-tcp": {"LWCC_TRANSPORT": "ucx", "UCX_TLS": "tcp"},
    "ucx-shm": {"LWCC_TRANSPORT": "ucx", "UCX_TLS": "posix,self,cma"},
    "shm+ucx": {"LWCC_TRANSPORT": "shm+ucx", "UCX_TLS": "tcp"},
}
PRELUDE = "import numpy as np\nimport lwcc\nlwcc.init()\nrank, size = lwcc.rank(), lwcc.size()\n"
TAIL = 40  # lines shown of each rank
# a shell has these two ignored in what it starts in the background; the programs under test shall inherit the default
for _number, _default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _default)


class Finished:
    """A job that has ended: `code`, `out` and `err` (all ranks, tagged by the launcher)."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def tail(self) -> str:
        parts = [f"exit code {self.code}"]
        for title, text in (("stdout", self.out), ("stderr", self.err)):
            parts.append(f"--- {title}\n" + "\n".join(text.splitlines()[-TAIL:]))
        return "\n".join(parts)


def run_group(command: list[str], env: Mapping[str, str], timeout: float, cwd: Path) -> Finished:
    """Run a command in a process group of its own; at the deadline end that group, and only that."""
    process = subprocess.Popen(
        command,
        env=dict(env),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            out, err = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
        pytest.fail(f"not finished after {timeout:g} s\n" + Finished(124, out, err).tail())
    return Finished(process.returncode, out, err)


@pytest.fixture
def run_ranks(tmp_path: Path) -> Callable[..., Finished]:
    """run_ranks(n, source or path, env=..., timeout=..., code=0, prelude=True): n real processes.

    `source` is Python; with `prelude` it finds np, lwcc (initialised), rank and size. Asserts the exit code `code`
    (None: any) and returns what the job printed.
    """
    count = 0

    def run(
        n: int,
        source: Union[str, Path],
        *,
        env: Optional[Mapping[str, str]] = None,
        timeout: float = 60,
        code: Optional[int] = 0,
        prelude: bool = True,
    ) -> Finished:
        nonlocal count
        script = source
        if isinstance(source, str):
            count += 1
            script = tmp_path / f"script{count}.py"
            script.write_text((PRELUDE if prelude else "") + textwrap.dedent(source))
        full = {**os.environ, "PYTHONFAULTHANDLER": "1", **(env or {})}
        command = [sys.executable, "-m", "lwcc.launcher", "-np", str(n), str(script)]
        done = run_group(command, full, timeout, tmp_path)
        assert code is None or done.code == code, done.tail()
        return done

    return run


@pytest.fixture
def ranks(run_ranks: Callable[..., Finished]) -> Callable[[int], Callable[..., Finished]]:
    """ranks(n)(source, ...): `run_ranks` for a fixed number of processes."""

    def fixed(n: int) -> Callable[..., Finished]:
        def run(source: Union[str, Path], **keywords: Any) -> Finished:
            return run_ranks(n, source, **keywords)

        return run

    return fixed


@pytest.fixture
def finish(tmp_path: Path) -> Callable[..., Finished]:
    """finish(command, code=0, timeout=120, **env): run any command to its end. Asserts the code (None: not 0)."""

    def run(command: list[str], code: Optional[int] = 0, timeout: float = 120, **env: str) -> Finished:
        done = run_group(command, {**os.environ, "OMP_NUM_THREADS": "1", **env}, timeout, tmp_path)
        assert done.code == code or (code is None and done.code != 0), done.tail()
        return done

    return run


@pytest.fixture(scope="session")
def wires() -> Callable[[str], dict[str, str]]:
    """wires(name): the variables of WIRES; skips where UCX is needed and not installed, and says why."""

    def variables(name: str) -> dict[str, str]:
        from lwcc import errors, inspection

        if "ucx" in name:
            try:
                inspection.ucx()
            except errors.Unsupported as error:
                pytest.skip(str(error))
        return WIRES.get(name, {"LWCC_TRANSPORT": name})

    return variables


@pytest.fixture(scope="session")
def digits() -> list[str]:
    """A training that ends with 0 if it reaches its target: a script with arguments."""
    return [str(ROOT / "examples" / "pytorch_digits.py"), "--epochs", "10"]


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture
def alone() -> Any:
    """An initialised job of size 1 in this process, ended with the test."""
    import lwcc

    for name in ("RANK", "WORLD_SIZE", "LWCC_RANK"):
        assert name not in os.environ, f"the tests run outside a job, but {name} is set"
    lwcc.init()
    yield lwcc
    lwcc.shutdown()
