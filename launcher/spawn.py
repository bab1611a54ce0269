"""Starts local ranks: each in a session of its own, with pipes for its output, tied to the launcher's life."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lwcc.launcher.output import Stream

LINGER_S = 1.0  # what a rank left behind in its group may finish (resource trackers do) before SIGKILL
DRAIN_S = 0.5  # then its pipes are closed even if someone outside the group holds them
_HERE = os.path.dirname(os.path.abspath(__file__))


class CannotRun(Exception):
    """The command cannot be started. code: the shell's exit code for that (127 not found, 126 not executable)."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@dataclass
class Rank(ABC):
    """A started rank. Its process group's number is its pid, fixed at start. Times: time.monotonic()."""

    rank: int
    host: str
    pid: int
    streams: tuple[Stream, Stream]  # stdout, stderr
    born: float = field(default_factory=time.monotonic)
    died: float | None = None
    status: int | None = None  # exit code; -N: died by signal N
    lost: str = ""  # why nothing is known of its end
    stopped_by_us: bool = False  # got SIGTERM or SIGKILL from the launcher
    group_gone: bool = False

    @property
    def err(self) -> Stream:
        """The stream of its stderr."""
        return self.streams[1]

    @property
    def how(self) -> str:
        """How it ended, in words."""
        return self.lost or describe_status(self.status or 0)

    @abstractmethod
    def signal_group(self, signum: int) -> None:
        """Send signum to the rank's process group, if there is one left."""

    @abstractmethod
    def signal(self, signum: int) -> None:
        """Send signum to the rank's own process."""

    @abstractmethod
    def reap(self) -> bool:
        """Note the rank's end. True once: when it has just ended."""

    def group_alive(self) -> bool:
        """Is anything left of the rank's process group?"""
        return not self.group_gone

    def open_pipes(self) -> dict[int, Stream]:
        """The pipes that are read here, by file descriptor."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """End whatever is left here."""


class LocalRank(Rank):
    """A rank on this machine, a child of this process."""

    def __init__(self, rank: int, host: str, process: subprocess.Popen[bytes], streams: tuple[Stream, Stream]) -> None:
        super().__init__(rank, host, process.pid, streams)
        self._process = process
        self._pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe is not None]
        self._by_fd = {pipe.fileno(): stream for pipe, stream in zip(self._pipes, streams)}

    def signal_group(self, signum: int) -> None:
        """Send signum to the rank's process group, if there is one left."""
        try:
            os.killpg(self.pid, signum)
        except (ProcessLookupError, PermissionError):
            self.group_gone = self.died is not None

    def signal(self, signum: int) -> None:
        """Send signum to the rank's own process."""
        os.kill(self.pid, signum)

    def reap(self) -> bool:
        """Note the rank's end. True once: when it has just ended."""
        if self.died is not None or self._process.poll() is None:
            return False
        self.status = self._process.returncode
        self.died = time.monotonic()
        return True

    def group_alive(self) -> bool:
        """Is anything left of the rank's process group?"""
        if not self.group_gone:
            self.signal_group(0)
        return not self.group_gone

    def open_pipes(self) -> dict[int, Stream]:
        """Both pipes; the caller knows which it still reads."""
        return self._by_fd

    def close(self) -> None:
        """Kill what is left, reap the process, close the pipes."""
        if not self.group_gone:
            self.signal_group(signal.SIGKILL)
        if self.died is None:
            self._process.wait()
        for pipe in self._pipes:
            pipe.close()


def describe_status(status: int) -> str:
    """The text of an exit status: "exit code 7", "signal 9 (SIGKILL)"."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"signal {-status}"


def exit_code(status: int) -> int:
    """The shell's convention: 128 + N for signal N."""
    return status if status >= 0 else 128 - status


def build_command(command: Sequence[str], module: bool) -> list[str]:
    """The command line of a rank: scripts and modules run with this Python, anything else is found on PATH.

    Raises CannotRun if it is not there or not executable.
    """
    if module:
        return [sys.executable, "-m", *command]
    name = command[0]
    if name.endswith(".py"):
        if not os.path.isfile(name):
            raise CannotRun(f"no such script: {name} (in {os.getcwd()})", 127)
        return [sys.executable, *command]
    if shutil.which(name) is None:
        if os.path.exists(name):
            raise CannotRun(f"{name} is not executable (chmod +x it, or put an interpreter in front of it)", 126)
        raise CannotRun(f"command not found: {name}", 127)
    return list(command)


def with_shim(command: Sequence[str]) -> list[str]:
    """The command, so that the kernel kills it when this process dies."""
    return [sys.executable, "-I", "-S", os.path.join(_HERE, "shim.py"), str(os.getpid()), *command]


def start_process(command: Sequence[str], env: Mapping[str, str], *, with_stdin: bool) -> subprocess.Popen[bytes]:
    """Start one rank's process; its output pipes do not block. Raises OSError when resources are out."""
    process = subprocess.Popen(
        with_shim(command),
        env=dict(env),
        stdin=None if with_stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        bufsize=0,
    )
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            os.set_blocking(pipe.fileno(), False)
    return process


class Watchdog:
    """The helper process that kills leftover groups if the launcher is killed (see watchdog.py)."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", os.path.join(_HERE, "watchdog.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )

    def watch(self, group: int) -> None:
        """A group has started."""
        self._tell(b"+%d\n" % group)

    def forget(self, group: int) -> None:
        """A group is gone; its number may be used again."""
        self._tell(b"-%d\n" % group)

    def end(self) -> None:
        """The launcher has cleaned up itself."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _tell(self, line: bytes) -> None:
        if self._process.stdin is not None:
            try:
                self._process.stdin.write(line)
            except BrokenPipeError:
                self._process.stdin = None  # someone killed it: the kernel still kills the ranks themselves
