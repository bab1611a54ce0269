"""What the arguments of torch.distributed mean: options objects, or the plain arguments of older forms."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple, Optional, Union

import torch
import torch.distributed as dist

from lwcc.ops import Op

Tensors = list[torch.Tensor]
_KINDS: Any = dist.ReduceOp.RedOpType
_OPS: dict[Any, Op] = {
    _KINDS.SUM: Op.SUM,
    _KINDS.AVG: Op.AVERAGE,
    _KINDS.PRODUCT: Op.PRODUCT,
    _KINDS.MIN: Op.MIN,
    _KINDS.MAX: Op.MAX,
    _KINDS.PREMUL_SUM: Op.SUM,
}


class Reduction(NamedTuple):
    """`op` of the core after a multiplication by `prescale`; `op` None: one that the core has not."""

    op: Optional[Op]
    prescale: float = 1.0


def _state(op: Any) -> tuple[Any, Any]:
    kind, factor = op.__getstate__()
    return kind, factor


def reduction(options: Any) -> Reduction:
    """Return the reduction of an options object, of a `ReduceOp`, or of None (sum)."""
    wanted: Any = getattr(options, "reduceOp", options)
    kind, factor = _state(wanted) if isinstance(wanted, dist.ReduceOp) else (wanted, None)
    if kind is None or isinstance(kind, timedelta):
        return Reduction(Op.SUM)
    return Reduction(_OPS.get(kind), 1.0 if kind != _KINDS.PREMUL_SUM or factor is None else float(factor))


def root(options: Any, ranks: int) -> int:
    """Return the root, an index in a group of so many ranks, of an options object or as a number.

    Raises:
        ValueError: there is no such rank.
    """
    return member(int(getattr(options, "rootRank", options)), ranks, "root rank")


def member(index: int, ranks: int, what: str) -> int:
    """Return the index of a rank in the group; ValueError if there is none of that index."""
    if not 0 <= index < ranks:
        raise ValueError(f"lwcc: invalid {what} {index}: the group's ranks are 0 to {ranks - 1}")
    return index


def allowed(options: Any, timeout: Optional[timedelta], group: timedelta) -> float:
    """Return the seconds that a call may take: its own, or else those of the group."""
    own = options if isinstance(options, timedelta) else getattr(options, "timeout", timeout)
    if not isinstance(own, timedelta) or own.total_seconds() <= 0:
        own = group
    return float(own.total_seconds())


def as_list(tensors: Union[torch.Tensor, Tensors]) -> Tensors:
    """Return the tensors of either form."""
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def one(tensors: Union[torch.Tensor, Tensors], what: str) -> torch.Tensor:
    """Return the only tensor.

    Raises:
        ValueError: there are several: on the CPU a process has one for each call.
    """
    found = as_list(tensors)
    if len(found) != 1:
        raise ValueError(f"lwcc: {what} takes one tensor from each process, not {len(found)}")
    return found[0]


def one_list(lists: Any, what: str) -> Tensors:
    """Return the only list of tensors, given as it is or in a list of its own."""
    if lists and isinstance(lists[0], torch.Tensor):
        return list(lists)
    if len(lists) != 1:
        raise ValueError(f"lwcc: {what} takes one list of tensors from each process, not {len(lists)}")
    return list(lists[0])
