"""Ranks that an MPI's launcher starts, as lwccrun sees them: their output and their ends come through named pipes.

Each rank runs below mpirank.py, which opens its pipes and tells on the pipe "ends", a line each, `RANK started PID` and
`RANK ended STATUS` (an exit code; -N: signal N). All ranks are on this machine, also those of a `--net`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from lwcc.launcher.output import Stream
from lwcc.launcher.spawn import Rank

LAUNCHER = -1  # the number of the MPI's launcher among the processes of a job
_BY_US = (signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT)  # the others reach the ranks through the MPI's launcher


class MpiRank(Rank):
    """A rank below the MPI's launcher. Its group is the MPI's to tidy."""

    def __init__(self, rank: int, host: str, streams: tuple[Stream, Stream], folder: str) -> None:
        super().__init__(rank, host, 0, streams)
        self._pidfd = -1
        self._ended = False
        self._by_fd: dict[int, Stream] = {}
        for name, stream in zip(("out", "err"), streams):
            path = os.path.join(folder, f"{name}-{rank}")
            os.mkfifo(path, 0o600)
            self._by_fd[os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)] = stream

    def take(self, word: str, number: int) -> None:
        """What its line says."""
        if word == "started":
            self.pid, self.born = number, time.monotonic()
            with contextlib.suppress(OSError):  # it has ended already
                self._pidfd = os.pidfd_open(number)
        elif not self._ended:
            self.status, self._ended = number, True

    def lose(self) -> None:
        """The MPI's launcher is gone, and with it the rank, whose end nobody saw."""
        if not self._ended:
            self.signal_group(signal.SIGKILL)
            self.status, self._ended, self.stopped_by_us = -signal.SIGKILL, True, True
            self.lost = "ended with the MPI's launcher" if self.pid else "not started by the MPI's launcher"

    def signal_group(self, signum: int) -> None:
        """Kill, stop or continue its process; else nothing, see `_BY_US`."""
        if signum in _BY_US and self._pidfd >= 0 and self.died is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signum)

    def signal(self, signum: int) -> None:
        """Nothing: the MPI's launcher passes it on."""

    def reap(self) -> bool:
        """True once: when its end has been told."""
        if self.died is not None or not self._ended:
            return False
        self.died = time.monotonic()
        return True

    def group_alive(self) -> bool:
        """Nothing that we would know of."""
        return False

    def open_pipes(self) -> dict[int, Stream]:
        """Both pipes; the caller knows which it still reads."""
        return self._by_fd

    def close(self) -> None:
        """Close the pipes."""
        for fd in (*self._by_fd, self._pidfd):
            if fd >= 0:
                os.close(fd)
        self._by_fd, self._pidfd = {}, -1


class MpiCrew:
    """All ranks of a job below one MPI's launcher, and the folder of their pipes."""

    def __init__(self, folder: str) -> None:
        self.ranks: dict[int, MpiRank] = {}
        self._folder = folder
        path = os.path.join(folder, "ends")
        os.mkfifo(path, 0o600)
        self.fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)  # also written: so it never ends
        self._pending = b""

    def add(self, rank: int, host: str, streams: tuple[Stream, Stream]) -> MpiRank:
        """Make the pipes of a rank that is about to be started."""
        self.ranks[rank] = MpiRank(rank, host, streams, self._folder)
        return self.ranks[rank]

    def take(self) -> None:
        """Read what has been told."""
        with contextlib.suppress(BlockingIOError):
            while True:
                *lines, self._pending = (self._pending + os.read(self.fd, 1 << 16)).split(b"\n")
                for line in lines:
                    rank, word, number = line.split()
                    self.ranks[int(rank)].take(word.decode(), int(number))

    def lose(self) -> None:
        """The MPI's launcher has ended: nothing more will be told."""
        self.take()
        for rank in self.ranks.values():
            rank.lose()

    def close(self) -> None:
        """Close the pipe of the ends."""
        os.close(self.fd)
