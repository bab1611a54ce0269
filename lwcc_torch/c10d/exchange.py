"""Collectives in which ranks send one another parts of different sizes: alltoall, gather, scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch

from lwcc import ops as core
from lwcc_torch import tensor as memory
from lwcc_torch.c10d.pieces import Piece, spread
from lwcc_torch.c10d.requests import Wanted


class Exchange:
    """One rank's part: what it sends to each rank, what it expects from each, and where that goes.

    The core allocates the output, because a rank may send more than this one expects.
    """

    def __init__(
        self, what: str, source: Piece, sent: Sequence[int], expected: Sequence[int], *,
        outputs: Sequence[torch.Tensor], part: Optional[int] = None,
    ) -> None:  # fmt: skip
        """Counts are in elements of the tensors.

        Args:
            what: the collective, for messages.
            source: all that this rank sends.
            sent: how much of it for each rank, in order.
            expected: how much comes from each rank.
            outputs: take what comes, in order.
            part: the size of every part, if it is the same on all ranks, which is then checked.
        """
        self.source = source
        self._what = what
        width = source.width
        self._row = max(1, part * width) if part is not None else 1
        self._part = part
        self._sent = tuple(n * width // self._row for n in sent)
        self._expected = tuple(n * width // self._row for n in expected)
        self._outputs = outputs
        self._came: Any = None

    def request(self) -> Wanted:
        """Return the request for the core."""
        rows = sum(self._sent)
        shape = (rows,) if self._part is None else (rows, self._row)
        return Wanted(core.ALLTOALL, self.source.pointer, 0, shape, self.source.code, splits=self._sent)

    def take(self, ticket: int) -> None:
        """Take over what came with the ticket."""
        made = core.result(ticket)
        self._came = core.take_buffer(ticket), made

    def settle(self) -> None:
        """Bring what came to the outputs.

        Raises:
            ValueError: other sizes than expected came.
        """
        buffer, made = self._came
        if made.splits != self._expected:
            raise ValueError(
                f"lwcc: {self._what}: this rank expects {list(self._expected)} elements from the ranks, "
                f"but they sent {list(made.splits)}"
            )
        if self._outputs:
            flat = self.source.data.reshape(-1)
            spread(self._outputs, memory.adopt(buffer, flat, made.first_dim * self._row))
