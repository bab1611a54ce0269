"""Which parameters the ranks of an optimizer reduce: those that any of them trains, agreed on by name.

Each rank tells the others of all its parameters, frozen ones included, in one allgather: before its first reduction,
and again when a rank trains one that nobody trained before. All compute the same answer, or the same error, from that.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional

import torch

from lwcc import context, errors
from lwcc import ops as core
from lwcc_torch import engine
from lwcc_torch import tensor as memory
from lwcc_torch.engine import Call

if TYPE_CHECKING:
    from lwcc.process_sets import ProcessSet

Named = Mapping[int, tuple[str, torch.Tensor]]  # id of a parameter -> its name, and itself
_ADVICE = "give all ranks named_parameters=model.named_parameters() of the same model, frozen parameters included"


class Row(NamedTuple):
    """One parameter in what a rank tells: its group of parameters is `unit`, or -1."""

    name: str
    kind: str
    trained: bool
    unit: int


def parameters(optimizer: torch.optim.Optimizer, named: Named) -> dict[str, tuple[torch.Tensor, bool]]:
    """Return all parameters by name, and whether the optimizer trains them; those without a name are numbered."""
    inside = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    found = {name: (p, i in inside and p.requires_grad) for i, (name, p) in named.items()}
    unnamed = [p for i, p in inside.items() if i not in named]
    return {**found, **{f"parameter {i}": (p, p.requires_grad) for i, p in enumerate(unnamed)}}


def describe(param: torch.Tensor) -> str:
    """Return what has to be the same on all ranks that train a parameter or might."""
    if torch.nn.parameter.is_lazy(param) or param.layout is not torch.strided:
        return f"{type(param).__name__} {param.layout}"
    return f"{param.dtype} {tuple(param.shape)} strides {memory.dense_strides(param)}"


def announce(
    name: str, found: Mapping[str, tuple[torch.Tensor, bool]], units: Mapping[int, int],
    process_set: Optional[ProcessSet],
) -> list[core.Ticket]:  # fmt: skip
    """Tell the other ranks of this one's parameters. Does not block."""
    rows = [Row(n, describe(p), trained, units.get(id(p), -1)) for n, (p, trained) in found.items()]
    text = zlib.compress(json.dumps([context.rank(), rows]).encode())
    call = Call(core.ALLGATHER, f"{name}.layout", process_set=process_set)
    return engine.start([call], [torch.frombuffer(bytearray(text), dtype=torch.uint8)])


def agree(title: str, tickets: Sequence[core.Ticket]) -> list[tuple[str, int]]:
    """Wait for what all ranks tell; return name and unit of what any of them trains, in the first rank's order.

    Raises:
        Mismatch: a parameter that a rank trains is unknown on another, or another one there; on all ranks alike.
        LwccError: the exchange failed.
    """
    done = engine.finish(tickets)[0]
    told = [part for part in done.output.split(done.splits) if len(part)]  # none from the joined
    ranks: dict[int, dict[str, Row]] = {}
    for part in told:
        rank, rows = json.loads(zlib.decompress(part.numpy().tobytes()))
        ranks[rank] = {row[0]: Row(*row) for row in rows}
    _refuse_other_numbers(title, ranks)
    trained: dict[str, tuple[int, Row]] = {}  # with the first rank that does
    for rank, listed in ranks.items():
        for row in listed.values():
            if row.trained:
                trained.setdefault(row.name, (rank, row))
    for rank, listed in ranks.items():
        for there, row in trained.values():
            _refuse_other(title, row, there, listed.get(row.name), rank)
    return [(name, trained[name][1].unit) for name in next(iter(ranks.values())) if name in trained]


def _refuse_other(title: str, row: Row, there: int, here: Optional[Row], rank: int) -> None:
    start = f"{title}: the ranks' optimizers differ: {row.name} {row.kind} is trained on rank {there}, "
    if here is None:
        raise errors.Mismatch(f"{start}but rank {rank} has no parameter of that name: {_ADVICE}")
    if here.kind != row.kind:
        raise errors.Mismatch(f"{start}but on rank {rank} it is {here.kind}: it must be the same on all ranks")


def _refuse_other_numbers(title: str, ranks: Mapping[int, Mapping[str, Row]]) -> None:
    """Parameters without names are taken to be the same by their numbers, so there must be as many everywhere."""
    counts = {rank: sum(name.startswith("parameter ") for name in listed) for rank, listed in ranks.items()}
    first = next(iter(counts))
    for rank, count in counts.items():
        if count != counts[first]:
            raise errors.Mismatch(
                f"{title}: the ranks' optimizers differ: {counts[first]} parameters without names on rank {first}, "
                f"{count} on rank {rank}, so nobody can tell which are the same: {_ADVICE}"
            )
