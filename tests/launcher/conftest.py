"""Runs lwccrun as a real process, and finds whatever it leaves behind by a mark in the environment."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 30.0


def as_in_a_terminal() -> None:
    """Run in the child: nohup, under which the suite may run, has it ignore SIGHUP."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Job:
    """One lwccrun process. Its output is read as bytes."""

    def __init__(self, args: tuple[str, ...], mark: str, **popen: Any) -> None:
        self.mark = mark
        env = {**os.environ, "LWCC_TEST_MARK": mark, "OMP_NUM_THREADS": "1", **popen.pop("env", {})}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lwcc.launcher", *args], env=env, preexec_fn=as_in_a_terminal, **pipes
        )
        self.out = b""

    def read_until(self, text: bytes, times: int = 1) -> None:
        """Read stdout until text has come so often."""
        deadline = time.monotonic() + DEADLINE_S
        fd = self.process.stdout.fileno()
        while self.out.count(text) < times:
            ready, _, _ = select.select([fd], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"{text!r} did not come; stdout so far: {self.out!r}"
            chunk = os.read(fd, 65536)
            assert chunk, f"{text!r} did not come; stdout: {self.out!r}, stderr: {self.process.stderr.read()!r}"
            self.out += chunk

    def kill(self, signum: int) -> Job:
        """Send a signal to lwccrun itself."""
        self.process.send_signal(signum)
        return self

    def finish(self, stdin: bytes | None = None) -> tuple[int, str, str]:
        """Wait for the end: (exit code, stdout, stderr). No process may be left."""
        try:
            out, err = self.process.communicate(stdin, timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        print(f"exit {self.process.returncode}\n{(self.out + out).decode()[-3000:]}\n{err.decode()[-3000:]}")
        assert "Traceback" not in "".join(line for line in err.decode().splitlines() if not line.startswith("["))
        assert self.leftovers() == []
        return self.process.returncode, (self.out + out).decode(), err.decode()

    def leftovers(self) -> list[int]:
        """Processes of this job, other than lwccrun itself; zombies do not count."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                marked = f"LWCC_TEST_MARK={self.mark}".encode() in path.read_bytes().split(b"\0")
            except OSError:
                continue  # it has just ended
            if marked and int(path.parent.name) != self.process.pid:
                found.append(int(path.parent.name))
        return found

    def wait_until_nothing_is_left(self) -> None:
        """Wait for the end of every process of the job."""
        deadline = time.monotonic() + 10
        while True:
            left = self.leftovers()
            if not left:
                return
            try:
                fd = os.pidfd_open(left[0])
            except ProcessLookupError:
                continue
            ready, _, _ = select.select([fd], [], [], max(deadline - time.monotonic(), 0))
            os.close(fd)
            assert ready, f"still alive: {[Path(f'/proc/{pid}/cmdline').read_bytes() for pid in left]}"


class Lwccrun:
    """Starts jobs; kills what is left of them after the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jobs: list[Job] = []

    def __call__(self, *args: str, **popen: Any) -> Job:
        """Start lwccrun with args."""
        job = Job(args, uuid.uuid4().hex, **popen)
        self._jobs.append(job)
        return job

    def script(self, text: str) -> str:
        """Write a Python script; return its path."""
        path = self._folder / f"script{len(list(self._folder.iterdir()))}.py"
        path.write_text(text)
        return str(path)

    def clean(self) -> None:
        """End everything."""
        for job in self._jobs:
            for pid in [*job.leftovers(), *([job.process.pid] if job.process.poll() is None else [])]:
                os.kill(pid, signal.SIGKILL)
            job.process.wait()
            for pipe in (job.process.stdout, job.process.stderr):
                if pipe is not None:
                    pipe.close()


@pytest.fixture
def lwccrun(tmp_path: Path) -> Iterator[Lwccrun]:
    """A function that starts lwccrun."""
    runner = Lwccrun(tmp_path)
    yield runner
    runner.clean()
