"""DistributedOptimizer with op=Adasum: each rank takes its own step, and the steps are summed adaptively.

Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021: steps that point the same way are
averaged, steps at right angles are added, per parameter, so that the learning rate need not grow with the ranks. For
more than two ranks the summation is a binary tree in rank order; their number need not be a power of two. The core
carries it out on slices of the tensors: a rank sends as much as for a ring allreduce, and keeps one tensor's worth.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Optional

import torch

from lwcc import ops as core
from lwcc.ops import Op
from lwcc_torch import engine
from lwcc_torch.compression import Compressor
from lwcc_torch.engine import Call

if TYPE_CHECKING:
    from lwcc.process_sets import ProcessSet


class AdasumDistributed:
    """What op=Adasum adds to an optimizer's class. All other methods are those of that class."""

    _lwcc_name: str
    _lwcc_set: Optional[ProcessSet]
    _lwcc_compression: type[Compressor]
    _lwcc_passes: int
    param_groups: list[dict[str, Any]]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Accepted for compatibility: gradients accumulate until `step`, whatever their number."""
        if passes < 1:
            raise ValueError(f"lwcc: backward_passes_per_step={passes}, must be at least 1")
        self._lwcc_passes = passes

    def synchronize(self) -> None:
        """Do nothing: gradients stay local, and `step` reduces what it changes."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Refuse, as a step without reduction would leave the ranks apart."""
        raise AssertionError("lwcc: skip_synchronize is not for op=Adasum")
        yield

    @torch.no_grad()
    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Take the step of the optimizer's own class, then replace it by the adaptive sum of all ranks' steps."""
        params = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        before = [p.detach().clone() for p in params]
        with torch.enable_grad():
            result = super().step(*args, **kwargs)  # type: ignore[misc]
        packed = [self._lwcc_compression.compress(p.detach() - old) for p, old in zip(params, before)]
        calls = [
            Call(core.ALLREDUCE, f"{self._lwcc_name}.step{i}", Op.ADASUM, process_set=self._lwcc_set, in_place=True)
            for i in range(len(params))
        ]
        tickets = [engine.start([call], [data.contiguous()])[0] for call, (data, _) in zip(calls, packed)]
        for p, old, done, (_, context) in zip(params, before, engine.finish(tickets), packed):
            p.copy_(old + self._lwcc_compression.decompress(done.output, context))
        return result

    step.hooked = True  # type: ignore[attr-defined]  # torch wraps step for its hooks once: in the optimizer's class


def distribute(
    optimizer: torch.optim.Optimizer, name: str, compression: type[Compressor], process_set: Optional[ProcessSet]
) -> Any:
    """Return an optimizer of a subclass of the given one's class, which shares its groups and state."""
    kind = type(optimizer)
    wrapped: Any = type(f"Distributed{kind.__name__}", (AdasumDistributed, kind), {"__module__": kind.__module__})
    made = wrapped.__new__(wrapped)
    made.__dict__ = optimizer.__dict__
    made.__dict__.pop("step", None)
    made._lwcc_name, made._lwcc_compression, made._lwcc_set = name, compression, process_set
    return made
