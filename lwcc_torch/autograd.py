"""Gradients of the blocking collectives.

The conventions are Horovod's: a rank's loss is one term of the mean over the ranks, so what an allgather or a
broadcast hands to everybody gets the *average* of the gradients, and an allreduce passes its own reduction back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch

from lwcc import context
from lwcc import ops as core
from lwcc.ops import Op
from lwcc_torch import engine
from lwcc_torch.engine import Call, Done


def run(calls: Sequence[Call], tensors: Sequence[torch.Tensor]) -> list[Done]:
    """Run the calls (as one unit if several); their outputs carry gradients if an input does."""
    if not (torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors)):
        return engine.run(calls, tensors)
    made: list[Done] = []
    apply: Any = _Collective.apply
    outputs = apply(tuple(calls), made, *tensors)
    return [done._replace(output=output) for done, output in zip(made, outputs)]


class _Collective(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """Any of the collectives on any number of tensors."""

    @staticmethod
    def forward(ctx: Any, calls: tuple[Call, ...], made: list[Done], *tensors: torch.Tensor) -> Any:
        done = engine.run(calls, tensors)
        made.extend(done)
        ctx.calls, ctx.splits, ctx.shapes = calls, [d.splits for d in done], [t.shape for t in tensors]
        return tuple(d.output for d in done)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        ready = [_outgoing(call, grad) for call, grad in zip(ctx.calls, grads)]
        back = [_reverse(call, rows) for call, rows in zip(ctx.calls, ctx.splits)]
        done = run(back, ready)
        found = [
            _incoming(call, d.output, rows).reshape(shape)
            for call, d, rows, shape in zip(ctx.calls, done, ctx.splits, ctx.shapes)
        ]
        return (None, None, *found)


def _outgoing(call: Call, grad: torch.Tensor) -> torch.Tensor:
    """Scale the gradient before it travels back through a reducescatter, as the forward pass did."""
    if call.collective != core.REDUCESCATTER:
        return grad
    factor = call.prescale * call.postscale * (engine.members(call.process_set) if call.op == Op.SUM else 1)
    return grad if factor == 1 else grad * factor


def _reverse(call: Call, splits: Optional[tuple[int, ...]]) -> Call:
    """Return the collective that carries the gradients of `call` back."""
    base = Call(call.collective, f"{call.name}.grad", process_set=call.process_set)
    if call.collective == core.ALLTOALL:
        return base._replace(splits=splits, algorithm=call.algorithm)
    if call.collective == core.REDUCESCATTER:
        return base._replace(collective=core.ALLGATHER)
    if call.collective != core.ALLREDUCE:
        return base._replace(collective=core.ALLREDUCE, op=Op.AVERAGE)
    if call.op not in (Op.AVERAGE, Op.SUM):
        raise NotImplementedError(f"lwcc: allreduce with op={call.op.name.title()} has no gradient; use Average or Sum")
    return base._replace(op=call.op, prescale=call.prescale, postscale=call.postscale, algorithm=call.algorithm)


def _incoming(call: Call, grad: torch.Tensor, splits: Optional[tuple[int, ...]]) -> torch.Tensor:
    """Pick this rank's share of the gradient that came back."""
    if call.collective == core.BROADCAST and context.rank() != call.root:
        return torch.zeros_like(grad)
    if call.collective == core.ALLGATHER and splits is not None:
        me = engine.my_index(call.process_set)
        return grad.narrow(0, sum(splits[:me]), splits[me])
    return grad
