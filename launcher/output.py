"""The ranks' output: whole lines with a tag, raw bytes, progress bars, the last lines for the report, log files.

A Stream takes a rank's bytes as they come and hands complete lines to a Screen, in one write, so that two ranks' lines
never mix. The last line of a stream needs no newline: finish() hands it over.
"""

from __future__ import annotations

import collections
import contextlib
import io
import os
import select
import time
from typing import BinaryIO

TAIL_LINES = 50
STAMPS = 100_000  # lines whose times are kept
TAIL_LINE_NBYTES = 2000
MAX_LINE_NBYTES = 8 << 20  # a longer line comes in pieces
_COLOURS = (36, 33, 32, 35, 34, 31, 96, 93, 92, 95, 94, 91)


def write_all(fd: int, data: bytes) -> None:
    """Write everything to fd, also when it is non-blocking. Raises BrokenPipeError when the reader has gone."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [])


class Screen:
    """Where lines end up: stdout and stderr of the launcher (file descriptors 1 and 2 unless given)."""

    def __init__(self, out_fd: int = 1, err_fd: int = 2) -> None:
        self.fds = (out_fd, err_fd)
        self.terminal = tuple(os.isatty(fd) for fd in self.fds)
        self.colour = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self._progress_fd: int | None = None  # a progress line stands there, without newline

    def write(self, which: int, data: bytes) -> None:
        """Write whole lines (or raw bytes) to stream which (0 stdout, 1 stderr)."""
        if self._progress_fd is not None and self.terminal[which]:
            fd, self._progress_fd = self._progress_fd, None
            write_all(fd, b"\r\x1b[K")
        write_all(self.fds[which], data)

    def progress(self, which: int, data: bytes) -> None:
        """Draw an unfinished line over the last one; the next write wipes it."""
        write_all(self.fds[which], b"\r" + data + b"\x1b[K")
        self._progress_fd = self.fds[which]

    def tag(self, which: int, rank: int, width: int) -> bytes:
        """The tag in front of a rank's lines."""
        text = b"[%*d] " % (width, rank)
        if not (self.terminal[which] and self.colour):
            return text
        return b"\x1b[%dm%s\x1b[0m" % (_COLOURS[rank % len(_COLOURS)], text)


class Stream:
    """One output stream of one rank. shown: does it reach the screen; live: may its progress bar be drawn."""

    def __init__(
        self, screen: Screen, which: int, tag: bytes | None, *, shown: bool = True, live: bool = False
    ) -> None:
        self._screen = screen
        self._which = which
        self._tag = tag  # None: raw bytes
        self._shown = shown
        self._live = live and screen.terminal[which] and tag is not None
        self._parts: list[bytes] = []  # the unfinished line
        self._parts_nbytes = 0
        self._tail: collections.deque[bytes] = collections.deque(maxlen=TAIL_LINES)
        self.log: BinaryIO | None = None
        self._born = time.monotonic()
        self._stamps: list[float] = []  # when each logged line of stdout ended, from the start

    def feed(self, data: bytes) -> None:
        """Take bytes as they were read."""
        if self.log is not None:
            self._write_log(data)
        if self._tag is None and self._shown:
            self._screen.write(self._which, data)
        head, newline, rest = data.rpartition(b"\n")
        if newline:
            self._emit(b"".join(self._parts) + head + newline)
            self._parts, self._parts_nbytes = [], 0
        if rest:
            self._parts.append(rest)
            self._parts_nbytes += len(rest)
        if self._parts_nbytes > MAX_LINE_NBYTES:
            self._emit_rest()
        elif self._live and self._parts:
            self._draw_progress()

    def finish(self) -> None:
        """The stream has ended: hand over the last line, which may lack its newline."""
        self._emit_rest()
        if self.log is not None:
            self._write_log(b"")
        if self.log is not None:
            self.log.close()
            if isinstance(self.log, io.BufferedWriter):  # a file: it has a name to write beside
                self._write_stamps(self.log.name)
            self.log = None

    def tail(self) -> list[str]:
        """The last lines, without their ends."""
        pending = [self._last_drawn(b"".join(self._parts))] if self._parts else []
        return [line[:TAIL_LINE_NBYTES].decode("utf-8", "replace") for line in [*self._tail, *pending]]

    def _write_log(self, data: bytes) -> None:
        """Write to the log file at once. A full disk ends the log, not the job."""
        if self.log is None:
            return
        try:
            self.log.write(data)
            self.log.flush()
        except OSError as error:
            log, self.log = self.log, None
            with contextlib.suppress(OSError):  # closing writes once more what did not fit
                log.close()
            self._screen.write(1, f"lwccrun: a log file ends here: {error}\n".encode())

    def _write_stamps(self, log: str) -> None:
        if self._which or not self._stamps:
            return
        with contextlib.suppress(OSError), open(os.path.splitext(log)[0] + ".times", "w", encoding="ascii") as file:
            file.writelines(f"{stamp:.3f}\n" for stamp in self._stamps)

    def _emit_rest(self) -> None:
        if self._parts:
            self._emit(b"".join(self._parts) + b"\n")
            self._parts, self._parts_nbytes = [], 0

    def _emit(self, lines: bytes) -> None:
        block = lines[:-1].split(b"\n")
        self._tail.extend(self._last_drawn(line) for line in block[-TAIL_LINES:])
        if self.log is not None and len(self._stamps) < STAMPS:
            self._stamps += [time.monotonic() - self._born] * len(block)
        if self._tag is None or not self._shown:
            return
        if self._live:
            block = [self._last_drawn(line) for line in block]
        self._screen.write(self._which, b"".join(self._tag + line + b"\n" for line in block))

    def _draw_progress(self) -> None:
        line = b"".join(self._parts)
        if b"\r" in line and self._shown and self._tag is not None:
            self._screen.progress(self._which, self._tag + self._last_drawn(line))

    @staticmethod
    def _last_drawn(line: bytes) -> bytes:
        """What a terminal would show of a line that was overwritten by carriage returns."""
        return line.rstrip(b"\r").rpartition(b"\r")[2]
