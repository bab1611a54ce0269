"""Allreduce of sparse tensors, whose indices and values are gathered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

import torch

from lwcc import errors
from lwcc import ops as core
from lwcc.ops import Op
from lwcc_torch import engine, ops
from lwcc_torch.engine import Call

if TYPE_CHECKING:
    from lwcc.process_sets import ProcessSet


class SparseHandle(int):
    """The handle of a sparse allreduce: for `poll` and `synchronize`, or to be called, as Horovod's."""

    def __call__(self) -> torch.Tensor:
        """Wait and return the result, as `synchronize`."""
        reduced: torch.Tensor = ops.synchronize(self)
        return reduced


def sparse_allreduce_async(
    tensor: torch.Tensor, name: Optional[str] = None, op: int = Op.AVERAGE, process_set: Optional[ProcessSet] = None
) -> SparseHandle:
    """Start the reduction (Average or Sum) of sparse COO tensors; return a handle, which can also be called.

    Indices and values are gathered; the result is coalesced, with the same bits on every rank.

    Raises (what takes the handle):
        Mismatch: the ranks disagree about the shape, the element type, the sparse dimensions or `op`.
    """
    kind = core.as_op(op)
    if kind not in (Op.AVERAGE, Op.SUM):
        raise ValueError(f"lwcc: sparse allreduce takes op=Average or Sum, not {kind.name.title()}")
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.sparse_coo:
        what = tensor.layout if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise TypeError(f"lwcc: sparse_allreduce_async takes a sparse COO tensor (tensor.to_sparse()), not {what}")
    base = engine.unnamed.next(core.ALLGATHER, process_set) if name is None else name
    own = tensor.detach().coalesce()
    gather = Call(core.ALLGATHER, "", process_set=process_set)
    calls = [gather._replace(name=f"{base}.{part}") for part in ("indices", "values", "meaning")]
    meaning = torch.tensor([[int(kind), *own.shape]])  # no gather compares these
    tickets = engine.start(calls, [own.indices().t(), own.values(), meaning])

    def combine(done: list[Any]) -> torch.Tensor:
        (indices, *_), (values, _, contributors), (meanings, rows, _) = done
        if bool((meanings != meaning).any()):
            raise errors.Mismatch(_disagreement(base, meanings.tolist(), rows, process_set))
        values = values / contributors if kind == Op.AVERAGE and contributors > 1 else values
        return torch.sparse_coo_tensor(indices.t(), values, own.shape, check_invariants=True).coalesce()

    return SparseHandle(ops.hold(tickets, combine))


def _disagreement(name: str, meanings: list[list[int]], rows: Sequence[int], process_set: Optional[ProcessSet]) -> str:
    """Say what two ranks that differ asked for; `rows` is 1 for each rank that takes part, 0 for the joined."""
    ranks = (process_set.ranks if process_set is not None else None) or range(len(rows))
    asked = list(zip((rank for rank, came in zip(ranks, rows) if came), meanings))
    other = next(pair for pair in asked if pair[1] != meanings[0])
    said = [f"rank {rank}: shape {shape}, op {Op(op).name.title()}" for rank, (op, *shape) in (other, asked[0])]
    return f'"{name}": the ranks disagree about a sparse allreduce: {"; ".join(said)}'


def as_rows(param: torch.Tensor, grad: Optional[torch.Tensor]) -> torch.Tensor:
    """Return a gradient as sparse rows; none at all if there is no gradient."""
    if grad is None:
        rows = torch.zeros((0, *param.shape[1:]), dtype=param.dtype)
        indices = torch.zeros((1, 0), dtype=torch.int64)
        return torch.sparse_coo_tensor(indices, rows, param.shape, check_invariants=True)
    return grad if grad.is_sparse else grad.detach().to_sparse(1)
