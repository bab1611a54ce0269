"""A limit on how long Python code of others may run: it gets an exception where it is."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator


class Endless(Exception):
    """Raised in code that has run for too long."""


@contextlib.contextmanager
def at_most(seconds: float, text: str) -> Iterator[None]:
    """Raise `Endless(text)` in the block, between two of its bytecodes, once it has run for so many seconds.

    Code that stays inside a single call of C is not reached.
    """
    thread, lock = threading.get_ident(), threading.Lock()
    over = [False]

    def give_up() -> None:
        with lock:  # so that nothing is raised once the block has been left
            if not over[0]:
                over[0] = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Endless))

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Endless as error:
        raise Endless(text).with_traceback(error.__traceback__) from None
    finally:
        timer.cancel()
        with lock:
            over[0] = True
