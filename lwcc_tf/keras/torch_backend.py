"""What the optimizer and the callbacks need of a backend, for Keras over PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional

import lwcc_torch
from lwcc_tf.options import Options, key

if TYPE_CHECKING:
    from lwcc.process_sets import ProcessSet


class Reducer:
    """Reduces the gradients of one optimizer, always under the same names, as one unit.

    Attributes:
        local: keys of variables whose gradients stay on this rank.
    """

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self.options = options.checked()
        self.local: set[int] = set()

    def reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the gradients (torch tensors or None) reduced over the ranks, in order; None stays None."""
        o, out = self.options, list(grads)
        if o.process_set is not None and not o.process_set.included():
            return out
        own = [i for i, (g, v) in enumerate(zip(grads, variables)) if g is not None and key(v) in self.local]
        sent = [i for i, grad in enumerate(grads) if grad is not None and i not in own]
        for i in own:
            ranks = lwcc_torch.size() if o.process_set is None else (o.process_set.size() or 1)
            out[i] = out[i] / ranks if o.scale_local else out[i]
        if not sent:
            return out
        before, after = (1 / o.predivide, o.predivide) if o.predivide != 1.0 else (1.0, 1.0)
        extra: dict[str, Any] = {} if o.algorithm is None else {"algorithm": o.algorithm}
        reduced = lwcc_torch.grouped_allreduce(
            [out[i].detach().contiguous() for i in sent], None, self.name, o.compression or lwcc_torch.Compression.none,
            o.op, prescale_factor=before, postscale_factor=after, process_set=o.process_set,
            **extra,
        )  # fmt: skip
        for i, grad in zip(sent, reduced):
            out[i] = grad
        return out


class Accumulator:
    """Sums the gradients of several calls for the same variables."""

    def __init__(self, passes: int, average: bool) -> None:
        self._passes, self._average = passes, average
        self._sums: list[Any] = []
        self._calls = 0

    def run(self, grads: Sequence[Any], variables: Sequence[Any], then: Callable[[list[Any]], None]) -> None:
        """Add gradients; with every `passes`-th call hand the sums, or means, to `then`."""
        before = self._sums or [None] * len(grads)
        self._sums = [b if g is None else g if b is None else b + g for b, g in zip(before, grads)]
        self._calls += 1
        if self._calls % self._passes:
            return
        sums, self._sums = self._sums, []
        then([total / self._passes if self._average and total is not None else total for total in sums])


def snapshot(variable: Any) -> Any:
    """Return what a variable holds now, as a tensor that later changes leave alone."""
    return variable.value.detach().clone()


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: Optional[ProcessSet] = None, inplace: bool = False
) -> None:
    """Overwrite Keras variables on all ranks with those of `root_rank`."""
    found = list(variables)
    tensors = {str(i): variable.value.detach().contiguous() for i, variable in enumerate(found)}
    lwcc_torch.broadcast_parameters(tensors, root_rank)
    for variable, tensor in zip(found, tensors.values()):
        variable.assign(tensor)
