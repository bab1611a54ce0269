"""What an asynchronous call of torch.distributed returns, and who completes its future."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist

from lwcc import context, errors
from lwcc import ops as core
from lwcc_torch.c10d.opaque import opaque

_LIVENESS_S = 0.5  # the completer looks this often whether it has to end


@opaque
class LwccWork(dist.Work):
    """A collective under way; made by a group.

    It is complete when its requests are; whoever sees that first, a waiter or the group's completer, lets `settle` copy
    the results to where the caller wants them.
    """

    def __init__(
        self, tickets: Sequence[core.Ticket], outputs: Any, timeout: float, settle: Callable[[], None]
    ) -> None:
        super().__init__()
        self._tickets = tickets
        self._outputs = outputs
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._settle = settle
        self._lock = threading.Lock()
        self._future: Optional[torch.futures.Future[Any]] = None
        self._begun: Optional[torch.futures.Future[Any]] = None  # completes it
        self._done: Optional[threading.Event] = (
            None  # made with the future: then the completer alone waits for the core
        )
        self._finished = False
        self._failure: Optional[Exception] = None
        self.completer: Optional[Completer] = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return True when the results are there.

        Args:
            timeout: the most to wait; 0: what the group allows, counted from the call.

        Raises:
            LwccError: the collective failed, see `lwcc.errors`; Timeout: it is still pending.
        """
        if not self._finished:
            own = timeout.total_seconds()
            self._await(time.monotonic() + own if own > 0 else self._deadline, own if own > 0 else self._timeout)
        if self._failure is not None:
            raise self._failure
        return True

    def _await(self, deadline: float, allowed: float) -> None:
        if self._done is None:
            self.collect(deadline, allowed)
        elif not self._done.wait(max(0.0, deadline - time.monotonic())):
            raise self._late(allowed)

    def collect(self, deadline: float, allowed: float, idle: bool = False) -> None:
        """Wait for the requests and finish; raise Timeout at the deadline, and leave them pending."""
        failure: Optional[Exception] = None
        for ticket in self._tickets:
            try:
                ticket.wait(max(0.0, deadline - time.monotonic()), idle)
            except (RuntimeError, ValueError) as error:
                if isinstance(error, errors.Timeout) and not ticket.done():
                    raise self._late(allowed) from None
                failure = failure or error
        self.finish(failure)

    def _late(self, allowed: float) -> errors.Timeout:
        names = ", ".join(ticket.name for ticket in self._tickets if not ticket.done())
        return errors.Timeout(
            f"lwcc: rank {context.rank()}: {names} is still pending after {allowed:g} s; "
            "did every rank of the process group make this call?"
        )

    def finish(self, failure: Optional[Exception]) -> None:
        """Settle, once; with a failure only keep it."""
        with self._lock:
            if self._finished:
                return
            try:
                if failure is None:
                    self._settle()
            except (RuntimeError, ValueError) as error:
                failure = error
            self._failure, self._finished = failure, True
            self._tickets, self._settle = (), _nothing

    def is_completed(self) -> bool:
        """Tell whether `wait` would return or raise at once."""
        if not self._finished and self._done is None and all(ticket.done() for ticket in self._tickets):
            self.collect(self._deadline, self._timeout)
        return self._finished

    def is_success(self) -> bool:
        """Tell whether it is complete and did not fail."""
        return self.is_completed() and self._failure is None

    def exception(self) -> Optional[Exception]:
        """Return what went wrong, or None."""
        return self._failure

    def result(self) -> Any:
        """Return the output tensors, waiting for them."""
        self.wait()
        return self._outputs

    def synchronize(self) -> None:
        """Wait."""
        self.wait()

    def block_current_stream(self) -> None:
        """Wait: there are no streams on the CPU."""
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of the output tensors, completed by a thread of the group.

        Where the collective failed its `wait` and `value` raise RuntimeError with the text of what `wait` here raises.
        """
        with self._lock:
            if self._future is not None:
                return self._future
            self._begun = torch.futures.Future()
            # only what a callback raises is an error also to C++ (DDP's); that of set_exception is a value there
            future = self._future = self._begun.then(self._deliver)
            completer = None if self._finished else self.completer
            if completer is not None:
                self._done = threading.Event()
        if completer is None:
            self.fulfil()
        else:
            completer.add(self)
        return future

    def fulfil(self) -> None:
        """Complete the future of this finished work, and run its callbacks."""
        assert self._begun is not None
        if self._done is not None:
            self._done.set()
        self._begun.set_result(None)

    def _deliver(self, _: torch.futures.Future[Any]) -> Any:
        if self._failure is not None:
            raise self._failure
        return self._outputs

    def complete_future(self, ended: threading.Event) -> None:
        """Finish and complete the future; if the group ends first, or the time is up, with a failure."""
        while not self._finished:
            now = time.monotonic()
            try:
                self.collect(min(now + _LIVENESS_S, self._deadline), self._timeout, idle=True)
            except errors.Timeout as error:
                if ended.is_set():
                    self.finish(errors.ShutDown("lwcc: the process group was destroyed before the call was complete"))
                elif time.monotonic() >= self._deadline:
                    self.finish(error)
        self.fulfil()


def _nothing() -> None:
    """Stand in for what a finished work has done, so that it holds no tensors."""


class Completer:
    """A thread of one group that completes futures, in the order of the calls; it starts with the first.

    A callback of a future may call a collective and wait for its future, on this thread: a further one completes that.
    """

    def __init__(self) -> None:
        self._deeper: Optional[Completer] = None
        self._works: queue.SimpleQueue[Optional[LwccWork]] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def add(self, work: LwccWork) -> None:
        """Have the work's future completed."""
        if self._thread is threading.current_thread():
            self._deeper = self._deeper or Completer()
            self._deeper.add(work)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lwcc-c10d", daemon=True)
            self._thread.start()
            _running.add(self)
        self._works.put(work)

    def _run(self) -> None:
        while True:
            work = self._works.get()
            if work is None:
                return
            work.complete_future(self._ended)
            del work  # its tensors

    def end(self) -> None:
        """Let the thread end; what is pending fails."""
        thread, self._thread = self._thread, None
        _running.discard(self)
        if thread is not None:
            self._ended.set()
            self._works.put(None)
            thread.join(2 * _LIVENESS_S)
        if self._deeper is not None:
            self._deeper.end()


_running: weakref.WeakSet[Completer] = weakref.WeakSet()


def _end_all() -> None:
    for completer in list(_running):
        completer.end()


context.at_shutdown(_end_all)  # no thread may wait in the core when it goes
