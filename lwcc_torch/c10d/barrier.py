"""monitored_barrier: rank 0 of the group learns, through the group's store, which ranks did not come."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from lwcc import errors, rendezvous

_GRACE_S = 1.0


class MonitoredBarrier:
    """The monitored barriers of one group, numbered on each rank."""

    def __init__(self, store: Any, ranks: Sequence[int], index: int) -> None:
        self._store = rendezvous.TorchStore(store)
        self._ranks = ranks
        self._index = index
        self._count = 0

    def pass_or_raise(self, timeout: timedelta, wait_all: bool) -> None:
        """Return when all ranks have come.

        Args:
            timeout: the most to wait.
            wait_all: name all ranks that did not come, not only the first.

        Raises:
            Timeout: ranks did not come; the text names them on every rank that came.
        """
        self._count += 1
        prefix = f"monitored_barrier/{self._count}"
        deadline = time.monotonic() + timeout.total_seconds()
        if self._index == 0:
            trouble = self._collect(prefix, deadline, timeout.total_seconds(), wait_all)
            self._store.set(f"{prefix}/answer", trouble.encode())
        else:
            self._store.set(f"{prefix}/{self._index}", b"1")
            trouble = self._answer(prefix, timeout.total_seconds())
        if trouble:
            raise errors.Timeout(trouble)

    def _collect(self, prefix: str, deadline: float, allowed: float, wait_all: bool) -> str:
        missing: list[int] = []
        for index in range(1, len(self._ranks)):
            try:
                self._store.get(f"{prefix}/{index}", max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                missing.append(self._ranks[index])
                if not wait_all:
                    break
        if not missing:
            return ""
        named = ", ".join(map(str, missing))
        return f"lwcc: rank {named} did not come to monitored_barrier within {allowed:g} s"

    def _answer(self, prefix: str, allowed: float) -> str:
        try:
            # rank 0, which may have begun a little later, knows more than this rank
            return self._store.get(f"{prefix}/answer", allowed + _GRACE_S).decode()
        except TimeoutError:
            return f"lwcc: rank {self._ranks[0]} did not come to monitored_barrier within {allowed:g} s"
