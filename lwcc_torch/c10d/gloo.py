"""The gloo backend beside a group, for what the core has no collective for."""

from __future__ import annotations

import threading
from collections import deque
from datetime import timedelta
from typing import Any, Callable, Optional

import torch.distributed

from lwcc import context, errors
from lwcc_torch.c10d.opaque import opaque

dist: Any = torch.distributed  # what its stubs leave out
_NEWS_S = 1.0  # gloo may fail for a dead rank so long before the core knows of it
_LOOK_S = 0.1


def backend(options: Any) -> Any:
    """Return a gloo backend for a group, which connects two ranks when they first talk.

    It has a network device of its own: groups that share one wait for each other's connections.

    Args:
        options: torch's `_DistributedBackendOptions`.
    """
    settings = dist.ProcessGroupGloo._Options()
    settings._devices = [dist.ProcessGroupGloo.create_default_device(lazy_init=True)]
    settings._threads, settings._timeout = 2, options.timeout
    store = dist.PrefixStore("gloo/", options.store)
    return dist.ProcessGroupGloo(store, options.group_rank, options.group_size, settings)


def as_options(kind: Any, given: Any) -> Any:
    """Return an options object; `given` may be one, a `ReduceOp` or None."""
    if isinstance(given, kind):
        return given
    options = kind()
    if given is not None:
        options.reduceOp = given
    return options


def run(start: Callable[[], Any]) -> GlooWork:
    """Start a call of the gloo backend.

    Raises:
        PeerLost: naming a dead rank, where that is why gloo fails; else what gloo raises. So does its work.
    """
    work = GlooWork()
    work.start(start)
    work.raise_failure()
    return work


class Line:
    """The messages with one peer. The first connects the two, which may block until the peer talks to this rank: then a
    thread starts it and what comes meanwhile, so that neither an irecv nor an isend ever blocks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[GlooWork, Callable[[], Any]]] = deque()
        self._connecting = self._connected = False

    def run(self, start: Callable[[], Any]) -> GlooWork:
        """Start a send or a receive, after those before; else as `run`."""
        with self._lock:
            if self._connected:
                return run(start)
            work = GlooWork()
            self._waiting.append((work, start))
            if not self._connecting:
                self._connecting = True
                threading.Thread(target=self._connect, name="lwcc-c10d-gloo", daemon=True).start()
        return work

    def _connect(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._connecting, self._connected = False, True
                    return
                work, start = self._waiting.popleft()
            work.start(start)


def _explained(error: RuntimeError) -> RuntimeError:
    lost = context.lost_rank(_NEWS_S)
    if lost is None:
        return error
    return errors.PeerLost(f"{lost}; gloo: {str(error).splitlines()[0]}", lost.code, lost.rank)


@opaque
class GlooWork(dist.Work):  # type: ignore[misc]
    """A call that gloo carries out; see torch's Work for the methods."""

    def __init__(self) -> None:
        super().__init__()
        self._work: Any = None
        self._failure: Optional[RuntimeError] = None
        self._begun = threading.Event()

    def start(self, start: Callable[[], Any]) -> None:
        """Take over gloo's work, or its failure."""
        try:
            self._work = start()
        except RuntimeError as error:
            self._failure = _explained(error)
        self._begun.set()

    def raise_failure(self) -> None:
        """Raise what `start` failed with; before it, look for dead ranks until it has begun."""
        while not self._begun.wait(_LOOK_S):
            lost = context.lost_rank(0)
            if lost is not None:
                raise lost
        if self._failure is not None:
            raise self._failure

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return True when it is complete; raise as `run` does."""
        self.raise_failure()
        try:
            return bool(self._work.wait(timeout))
        except RuntimeError as error:
            self._failure = _explained(error)
            raise self._failure from error

    def synchronize(self) -> None:
        """Wait."""
        self.wait()

    def is_completed(self) -> bool:
        """Tell whether `wait` would return or raise at once."""
        return self._begun.is_set() and (self._failure is not None or bool(self._work.is_completed()))

    def is_success(self) -> bool:
        """Tell whether it is complete and did not fail."""
        return self.is_completed() and self._failure is None and bool(self._work.is_success())

    def exception(self) -> Any:
        """Return what went wrong, or None."""
        return self._failure or (self._work.exception() if self._work is not None else None)

    def source_rank(self) -> int:
        """Return the rank, an index in the group, that a message from any source came from."""
        return int(self._work._source_rank())

    _source_rank = source_rank

    def result(self) -> Any:
        """Return the output tensors, waiting for them."""
        self.wait()
        return self._work.result()

    def get_future(self) -> Any:
        """Return gloo's future, which fails with gloo's own error."""
        self.raise_failure()
        return self._work.get_future()
