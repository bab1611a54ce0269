"""Streams and the screen: whole lines, no byte lost, progress bars, tails."""

import io
import os
import pty
import random
from collections.abc import Callable

import pytest

from lwcc.launcher.output import TAIL_LINES, Screen, Stream

Reader = Callable[[], bytes]


@pytest.fixture
def pipe() -> "tuple[Screen, Reader]":
    """A screen whose stdout and stderr are pipes, and a function that reads its stdout."""
    (out_r, out_w), (_, err_w) = os.pipe(), os.pipe()
    os.set_blocking(out_r, False)

    def read() -> bytes:
        try:
            return os.read(out_r, 1 << 20)
        except BlockingIOError:
            return b""

    return Screen(out_w, err_w), read


def test_a_line_waits_for_its_end_and_is_tagged(pipe: "tuple[Screen, Reader]") -> None:
    screen, read = pipe
    stream = Stream(screen, 0, b"[1] ")
    stream.feed(b"hel")
    assert read() == b""
    stream.feed(b"lo\nwor")
    assert read() == b"[1] hello\n"
    stream.finish()
    assert read() == b"[1] wor\n"


def test_any_cut_of_the_bytes_gives_the_same_lines(pipe: "tuple[Screen, Reader]") -> None:
    screen, read = pipe
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(200):
        text = bytes(rng.choice(b"ab\n\n\r\x00\xff") for _ in range(rng.randrange(60)))
        stream = Stream(screen, 0, b"> ")
        stream.log = log = io.BytesIO()
        kept: list[bytes] = []
        log.close = lambda kept=kept, log=log: kept.append(log.getvalue())  # type: ignore[method-assign, misc]
        at = 0
        while at < len(text):
            step = rng.randrange(1, 9)
            stream.feed(text[at : at + step])
            at += step
        stream.finish()
        lines = text.split(b"\n")
        expected = lines if lines[-1] else lines[:-1]
        assert read() == b"".join(b"> " + line + b"\n" for line in expected)
        assert kept == [text]


def test_without_a_tag_bytes_pass_at_once_and_unchanged(pipe: "tuple[Screen, Reader]") -> None:
    screen, read = pipe
    stream = Stream(screen, 0, None)
    stream.feed(b"\x00par")
    assert read() == b"\x00par"
    stream.feed(b"t\nend")
    stream.finish()
    assert read() == b"t\nend"
    assert stream.tail() == ["\x00part", "end"]


def test_a_hidden_stream_keeps_its_tail(pipe: "tuple[Screen, Reader]") -> None:
    screen, read = pipe
    stream = Stream(screen, 0, b"[1] ", shown=False)
    stream.feed(b"".join(b"%d\n" % i for i in range(1000)) + b"cut")
    assert read() == b""
    assert stream.tail() == [str(i) for i in range(1000 - TAIL_LINES, 1000)] + ["cut"]


def test_colours_and_live_progress_are_for_terminals_only(pipe: "tuple[Screen, Reader]") -> None:
    screen, read = pipe
    assert screen.tag(0, 3, 2) == b"[ 3] "
    stream = Stream(screen, 0, b"[0] ", live=True)
    stream.feed(b"\r10%\r20%")
    assert read() == b""
    stream.feed(b"\n")
    assert read() == b"[0] \r10%\r20%\n"


def test_on_a_terminal_progress_is_drawn_wiped_and_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    master, slave = pty.openpty()
    screen = Screen(slave, slave)
    assert screen.tag(0, 1, 1) == b"\x1b[33m[1] \x1b[0m"
    bar = Stream(screen, 1, b"[0] ", live=True)
    other = Stream(screen, 0, b"[1] ")
    bar.feed(b"\r10%")
    assert os.read(master, 1000) == b"\r[0] 10%\x1b[K"
    bar.feed(b"\r20%")
    assert os.read(master, 1000) == b"\r[0] 20%\x1b[K"
    other.feed(b"hello\n")
    assert os.read(master, 1000) == b"\r\x1b[K[1] hello\r\n"
    bar.feed(b"\r100%\n")
    assert os.read(master, 1000) == b"[0] 100%\r\n"
    os.close(slave)
    os.close(master)


def test_an_endless_line_does_not_fill_memory(pipe: "tuple[Screen, Reader]", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lwcc.launcher.output.MAX_LINE_NBYTES", 10)
    screen, read = pipe
    stream = Stream(screen, 0, b"> ")
    stream.feed(b"0123456789a")
    assert read() == b"> 0123456789a\n"


def test_a_full_disk_ends_the_log_and_not_the_job(pipe: "tuple[Screen, Reader]") -> None:
    screen, read = pipe
    stream = Stream(screen, 0, b"> ")
    stream.log = open("/dev/full", "wb")  # noqa: SIM115 - the stream closes it
    stream.feed(b"one\n")
    stream.feed(b"two\n")
    stream.finish()
    assert read() == b"> one\n> two\n"
    assert stream.log is None
