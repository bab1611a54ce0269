"""The unnamed calls of a process group as named requests of the core: the name is the call's number in the group.

So the calls of a group meet in program order on all its ranks, whatever other groups do, and ranks that disagree about
a call are told so.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from lwcc import ops as core
from lwcc.ops import Op

if TYPE_CHECKING:
    from lwcc.authoring import Choice

SLOTS = 1024  # names of a group; they come again, because the core remembers names


class Wanted(NamedTuple):
    """One request, without its name."""

    collective: int
    pointer_in: int
    pointer_out: int
    shape: tuple[int, ...]
    code: int
    op: Op = Op.SUM
    root: int = 0
    prescale: float = 1.0
    splits: Optional[tuple[int, ...]] = None
    algorithm: Optional[Choice] = None


class Requests:
    """Numbers the calls of one group."""

    def __init__(self, label: str, set_id: int) -> None:
        self._label = label
        self._set_id = set_id
        self._lock = threading.Lock()
        self._count = 0
        self._names = [f"{label}.{slot}" for slot in range(SLOTS)]
        self._latest = [0] * SLOTS  # the ticket of each name

    @property
    def count(self) -> int:
        """How many calls there were."""
        return self._count

    def submit(self, wanted: Sequence[Wanted], keep: Any, finish: Any) -> list[core.Ticket]:
        """Submit the requests in order; `finish` makes the result of a ticket from its number.

        Blocks while the request `SLOTS` calls earlier is pending.
        """
        with self._lock:
            return [self._submit_one(w, keep, finish) for w in wanted]

    def _submit_one(self, w: Wanted, keep: Any, finish: Any) -> core.Ticket:
        slot = self._count % SLOTS
        self._count += 1  # also if this rank's request is refused: the other ranks' are not
        if self._latest[slot] and not core.poll(self._latest[slot]):
            core.wait(self._latest[slot])
        name = self._names[slot]
        signature = (
            w.collective, w.shape, w.code, w.op, w.root, self._set_id, w.splits, w.prescale, 1.0, 0,
            w.algorithm,
        )  # fmt: skip
        number = self._latest[slot] = core.submit(name, signature, w.pointer_in, w.pointer_out)
        return core.Ticket(number, name, keep, finish)
