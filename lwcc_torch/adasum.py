"""DistributedOptimizer with op=Adasum: each rank takes its own step, and the steps are summed adaptively.

Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021: steps that point the same way are
averaged, steps at right angles are added, per parameter, so that the learning rate need not grow with the ranks. For
more than two ranks the summation is a binary tree in rank order; their number need not be a power of two. The core
carries it out on slices of the tensors: a rank sends as much as for a ring allreduce, and keeps one tensor's worth.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Optional

import torch

from lwcc import context, naming
from lwcc import ops as core
from lwcc.collectives import set_id
from lwcc.ops import Op
from lwcc_torch import engine, layout
from lwcc_torch.compression import Compressor
from lwcc_torch.engine import Call
from lwcc_torch.layout import Named

if TYPE_CHECKING:
    from lwcc.process_sets import ProcessSet


def refuse_copy(optimizer: Any, mark: str) -> None:
    """Raise RuntimeError if what `DistributedOptimizer` has marked is a copy, which the mark does not come along to."""
    if mark not in optimizer.__dict__:
        raise RuntimeError("lwcc: this is a copy of a distributed optimizer; wrap a copy of the plain one instead")


class AdasumDistributed:
    """What op=Adasum adds to an optimizer's class. All other methods are those of that class."""

    _lwcc_name: str
    _lwcc_set: Optional[ProcessSet]
    _lwcc_compression: type[Compressor]
    _lwcc_passes: int
    _lwcc_named: Named
    _lwcc_known: list[torch.Tensor]  # in the order that the ranks have agreed on
    _lwcc_moment: Optional[tuple[int, str]]  # the job, and the joins before
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
        """Take the step of the optimizer's own class, then replace it by the adaptive sum of all ranks' steps.

        If that fails the parameters keep the values that they had.
        A rank that does not train a parameter that others train counts as one whose step is zero, and keeps its value.
        """
        refuse_copy(self, "_lwcc_name")
        before = {id(p): p.detach().clone() for group in self.param_groups for p in group["params"] if p.requires_grad}
        self._agree(before.keys())
        with torch.enable_grad():
            result = super().step(*args, **kwargs)  # type: ignore[misc]
        params, call = self._lwcc_known, Call(core.ALLREDUCE, "", Op.ADASUM, process_set=self._lwcc_set, in_place=True)
        steps = [p.detach() - before[id(p)] if id(p) in before else torch.zeros_like(p) for p in params]
        packed = [self._lwcc_compression.compress(step) for step in steps]
        tickets = [
            engine.start([call._replace(name=f"{self._lwcc_name}.step{i}")], [data.contiguous()])[0]
            for i, (data, _) in enumerate(packed)
        ]
        try:
            finished = engine.finish(tickets)
        except (RuntimeError, ValueError):  # not by a step of this rank's own: the ranks would stay apart
            for p in (p for p in params if id(p) in before):
                p.copy_(before[id(p)])
            raise
        for p, done, (_, context_of) in zip(params, finished, packed):
            if id(p) in before:
                p.copy_(before[id(p)] + self._lwcc_compression.decompress(done.output, context_of))
        return result

    def _agree(self, trained: Set[int]) -> None:
        """See that all parameters that a rank trains are known to all."""
        moment = context.epoch(), naming.joins_of(set_id(self._lwcc_set))
        if self._lwcc_moment == moment:
            call = Call(core.ALLREDUCE, f"{self._lwcc_name}.news", Op.MAX, process_set=self._lwcc_set)
            unknown = len(trained - {id(p) for p in self._lwcc_known})
            if not bool(engine.run([call], [torch.tensor([unknown])])[0].output > 0):
                return
        else:  # ranks that had joined meanwhile, or of another job, don't know what the others have agreed on
            self._lwcc_known = []
        found = layout.parameters(self, self._lwcc_named)  # type: ignore[arg-type]  # an optimizer by its other base
        names = layout.agree(self._lwcc_name, layout.announce(self._lwcc_name, found, {}, self._lwcc_set))
        known = {id(p) for p in self._lwcc_known}
        self._lwcc_known += [found[name][0] for name, _ in names if id(found[name][0]) not in known]
        self._lwcc_moment = moment

    step.hooked = True  # type: ignore[attr-defined]  # torch wraps step for its hooks once: in the optimizer's class


def distribute(
    optimizer: torch.optim.Optimizer, name: str, compression: type[Compressor], process_set: Optional[ProcessSet],
    named: Named,
) -> Any:  # fmt: skip
    """Return an optimizer of a subclass of the given one's class, which shares its groups and state."""
    kind = type(optimizer)
    wrapped: Any = type(f"Distributed{kind.__name__}", (AdasumDistributed, kind), {"__module__": kind.__module__})
    made = wrapped.__new__(wrapped)
    made.__dict__ = optimizer.__dict__
    made.__dict__.pop("step", None)
    made._lwcc_name, made._lwcc_compression, made._lwcc_set = name, compression, process_set
    made._lwcc_named, made._lwcc_known, made._lwcc_moment = named, [], None
    return made
