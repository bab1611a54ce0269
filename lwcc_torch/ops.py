"""The collectives on tensors, under Horovod's names, keywords and defaults.

Each comes in up to four forms: blocking, `_async` (returns a handle, an int, for `poll` and `synchronize`), and the
same with a trailing underscore, in place. Keywords that they share:

    name            matches the call with those of the other ranks, in any order; without one, calls of a kind pair up
                    in program order.
    process_set     the ranks that take part; None: all.
    algorithm       an `@lwcc.algorithm`, "file.py:name" or the name of a built-in one; None: see `lwcc.use`. The
                    gradient of an allreduce or alltoall travels by the same one.

Tensors are dense CPU tensors of any integer, floating, bool or complex type and any shape; of a float8 type only where
nothing is reduced, as bytes. Inputs that are not contiguous are copied, except in place, where they are a ValueError.
The blocking forms that are not in place carry gradients. All raise ValueError or TypeError for a wrong argument
(nothing was submitted then), `Mismatch` where the ranks disagree, `PeerLost` where a rank died, `ShutDown` outside a
job.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

import torch

from lwcc import collectives
from lwcc import ops as core
from lwcc.ops import Op
from lwcc_torch import autograd, engine
from lwcc_torch import tensor as memory
from lwcc_torch.compression import Compression, Compressor, checked
from lwcc_torch.engine import Call

if TYPE_CHECKING:
    from lwcc.authoring import Choice
    from lwcc.process_sets import ProcessSet

Tensors = Sequence[torch.Tensor]
Splits = Union[torch.Tensor, Sequence[int], None]

_numbers = itertools.count(1)
_pending: dict[int, tuple[list[core.Ticket], Callable[[list[Any]], Any]]] = {}


def hold(tickets: list[core.Ticket], shape: Callable[[list[Any]], Any]) -> int:
    """Return a new handle for tickets whose results `shape` turns into the call's."""
    number = next(_numbers)
    _pending[number] = tickets, shape
    return number


def _taken(handle: int) -> tuple[list[core.Ticket], Callable[[list[Any]], Any]]:
    if handle not in _pending:
        raise ValueError(f"lwcc: handle {handle!r} is unknown, or was synchronized before")
    return _pending[handle]


def poll(handle: int) -> bool:
    """Tell whether `synchronize(handle)` would return at once. Never blocks."""
    return all(ticket.done() for ticket in _taken(handle)[0])


def synchronize(handle: int) -> Any:
    """Wait for an asynchronous call and return its result; the handle is used up, also if this raises."""
    tickets, shape = _taken(handle)
    del _pending[handle]
    return shape(engine.finish(tickets))


def _one(done: list[Any]) -> Any:
    return done[0].output


def _all(done: list[Any]) -> list[torch.Tensor]:
    return [d.output for d in done]


def _with_splits(done: list[Any]) -> Any:
    return done[0].output, torch.tensor(done[0].splits or (), dtype=torch.int32)


def _reduced(call: Call, calls: list[Call], tensors: Tensors, compression: type[Compressor]) -> list[torch.Tensor]:
    """Run reductions; with compression the averaging comes last, in the precision of the caller's tensor."""
    for tensor in tensors:
        memory.check(tensor, call.title)
    packed = [checked(compression).compress(tensor) for tensor in tensors]
    summing = Op.SUM if call.op == Op.AVERAGE else call.op
    sent = [
        c if context is None else c._replace(op=summing, postscale=1.0, counted=True)
        for c, (_, context) in zip(calls, packed)
    ]
    done = autograd.run(sent, [tensor for tensor, _ in packed])
    return [
        d.output if context is None else compression.decompress(d.output, context) * _after(call, d.contributors)
        for d, (_, context) in zip(done, packed)
    ]


def _after(call: Call, contributors: int) -> float:
    return call.postscale / (contributors if call.op == Op.AVERAGE else 1)


def _reduction(
    op: Op, scales: tuple[float, float], process_set: Optional[ProcessSet], algorithm: Optional[Choice],
    in_place: bool = False,
) -> Call:  # fmt: skip
    return Call(core.ALLREDUCE, "", op, 0, *scales, process_set, None, in_place, algorithm=algorithm)


def allreduce(
    tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None,
    compression: type[Compressor] = Compression.none, op: Optional[int] = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: Optional[ProcessSet] = None, *, algorithm: Optional[Choice] = None,
) -> torch.Tensor:  # fmt: skip
    """Reduce `tensor` over the ranks (default: average); return a new tensor of its shape and dtype.

    Args:
        tensor: same shape and dtype on every rank.
        average: deprecated, see `op`.
        name: see the module's text; so for `process_set`.
        compression: how the data travels, `Compression.fp16` for example.
        op: Average (default), Sum, Min, Max or Product.
        prescale_factor: multiplies each rank's input; floating types only.
        postscale_factor: multiplies the result; floating types only.
        process_set: the ranks that take part.
    """
    call = _reduction(engine.reduction(average, op), (prescale_factor, postscale_factor), process_set, algorithm)
    return _reduced(call, engine.named(call, name, None), [tensor], compression)[0]


def allreduce_async(
    tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[int] = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: Optional[ProcessSet] = None, *,
    algorithm: Optional[Choice] = None,
) -> int:  # fmt: skip
    """Start an `allreduce`; return its handle. `tensor` must not be changed until it is synchronized."""
    call = _reduction(engine.reduction(average, op), (prescale_factor, postscale_factor), process_set, algorithm)
    return hold(engine.start(engine.named(call, name, None), [tensor]), _one)


def allreduce_(
    tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[int] = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: Optional[ProcessSet] = None, *,
    algorithm: Optional[Choice] = None,
) -> torch.Tensor:  # fmt: skip
    """Reduce `tensor` in place and return it; no gradients."""
    call = _reduction(engine.reduction(average, op), (prescale_factor, postscale_factor), process_set, algorithm, True)
    return engine.run(engine.named(call, name, None), [tensor])[0].output


def allreduce_async_(
    tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[int] = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: Optional[ProcessSet] = None, *,
    algorithm: Optional[Choice] = None,
) -> int:  # fmt: skip
    """Start an `allreduce_`; return its handle."""
    call = _reduction(engine.reduction(average, op), (prescale_factor, postscale_factor), process_set, algorithm, True)
    return hold(engine.start(engine.named(call, name, None), [tensor]), _one)


def grouped_allreduce(
    tensors: Tensors, average: Optional[bool] = None, name: Optional[str] = None,
    compression: type[Compressor] = Compression.none, op: Optional[int] = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: Optional[ProcessSet] = None, *, algorithm: Optional[Choice] = None,
) -> list[torch.Tensor]:  # fmt: skip
    """Reduce several tensors as one unit; return new tensors, in order."""
    call = _reduction(engine.reduction(average, op), (prescale_factor, postscale_factor), process_set, algorithm)
    return _reduced(call, engine.named(call, name, len(tensors)), tensors, compression)


def grouped_allreduce_async(
    tensors: Tensors, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[int] = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: Optional[ProcessSet] = None, *,
    algorithm: Optional[Choice] = None,
) -> int:  # fmt: skip
    """Start a `grouped_allreduce`; return one handle for the group."""
    call = _reduction(engine.reduction(average, op), (prescale_factor, postscale_factor), process_set, algorithm)
    return hold(engine.start(engine.named(call, name, len(tensors)), tensors), _all)


def grouped_allreduce_(
    tensors: Tensors, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[int] = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: Optional[ProcessSet] = None, *,
    algorithm: Optional[Choice] = None,
) -> list[torch.Tensor]:  # fmt: skip
    """Reduce several tensors in place as one unit; return them."""
    handle = grouped_allreduce_async_(
        tensors, average, name, op,
        prescale_factor=prescale_factor, postscale_factor=postscale_factor, process_set=process_set,
        algorithm=algorithm,
    )  # fmt: skip
    reduced: list[torch.Tensor] = synchronize(handle)
    return reduced


def grouped_allreduce_async_(
    tensors: Tensors, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[int] = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: Optional[ProcessSet] = None, *,
    algorithm: Optional[Choice] = None,
) -> int:  # fmt: skip
    """Start a `grouped_allreduce_`; return one handle for the group."""
    call = _reduction(engine.reduction(average, op), (prescale_factor, postscale_factor), process_set, algorithm, True)
    return hold(engine.start(engine.named(call, name, len(tensors)), tensors), _all)


def allgather(
    tensor: torch.Tensor, name: Optional[str] = None, process_set: Optional[ProcessSet] = None,
    *, algorithm: Optional[Choice] = None,
) -> torch.Tensor:  # fmt: skip
    """Concatenate the ranks' tensors along dimension 0, in rank order; first dimensions may differ, also be 0."""
    calls = engine.named(Call(core.ALLGATHER, "", process_set=process_set, algorithm=algorithm), name, None)
    return autograd.run(calls, [tensor])[0].output


def allgather_async(
    tensor: torch.Tensor, name: Optional[str] = None, process_set: Optional[ProcessSet] = None,
    *, algorithm: Optional[Choice] = None,
) -> int:  # fmt: skip
    """Start an `allgather`; return its handle."""
    calls = engine.named(Call(core.ALLGATHER, "", process_set=process_set, algorithm=algorithm), name, None)
    return hold(engine.start(calls, [tensor]), _one)


def grouped_allgather(
    tensors: Tensors, name: Optional[str] = None, process_set: Optional[ProcessSet] = None,
    *, algorithm: Optional[Choice] = None,
) -> list[torch.Tensor]:  # fmt: skip
    """`allgather` several tensors as one unit."""
    calls = engine.named(Call(core.ALLGATHER, "", process_set=process_set, algorithm=algorithm), name, len(tensors))
    return _all(autograd.run(calls, tensors))


def grouped_allgather_async(
    tensors: Tensors, name: Optional[str] = None, process_set: Optional[ProcessSet] = None,
    *, algorithm: Optional[Choice] = None,
) -> int:  # fmt: skip
    """Start a `grouped_allgather`; return one handle for the group."""
    calls = engine.named(Call(core.ALLGATHER, "", process_set=process_set, algorithm=algorithm), name, len(tensors))
    return hold(engine.start(calls, tensors), _all)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: Optional[str] = None, process_set: Optional[ProcessSet] = None,
    *, algorithm: Optional[Choice] = None,
) -> torch.Tensor:  # fmt: skip
    """Return the tensor of `root_rank`, a global rank also within a process set."""
    root = core.whole(root_rank, "root_rank")
    call = Call(core.BROADCAST, "", root=root, process_set=process_set, algorithm=algorithm)
    calls = engine.named(call, name, None)
    return autograd.run(calls, [tensor])[0].output


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: Optional[str] = None, process_set: Optional[ProcessSet] = None,
    *, algorithm: Optional[Choice] = None,
) -> int:  # fmt: skip
    """Start a `broadcast`; return its handle."""
    root = core.whole(root_rank, "root_rank")
    call = Call(core.BROADCAST, "", root=root, process_set=process_set, algorithm=algorithm)
    calls = engine.named(call, name, None)
    return hold(engine.start(calls, [tensor]), _one)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: Optional[str] = None, process_set: Optional[ProcessSet] = None,
    *, algorithm: Optional[Choice] = None,
) -> torch.Tensor:  # fmt: skip
    """Overwrite `tensor` with that of `root_rank` and return it."""
    root = core.whole(root_rank, "root_rank")
    call = Call(core.BROADCAST, "", root=root, process_set=process_set, algorithm=algorithm, in_place=True)
    return engine.run(engine.named(call, name, None), [tensor])[0].output


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: Optional[str] = None, process_set: Optional[ProcessSet] = None,
    *, algorithm: Optional[Choice] = None,
) -> int:  # fmt: skip
    """Start a `broadcast_`; return its handle."""
    root = core.whole(root_rank, "root_rank")
    call = Call(core.BROADCAST, "", root=root, process_set=process_set, algorithm=algorithm, in_place=True)
    return hold(engine.start(engine.named(call, name, None), [tensor]), _one)


def _alltoall(
    tensor: torch.Tensor, splits: Splits, name: Optional[str], process_set: Optional[ProcessSet],
    algorithm: Optional[Choice],
) -> Call:  # fmt: skip
    rows = None if splits is None else tuple(core.whole(n, "splits") for n in splits)
    ranks = engine.members(process_set)
    if rows is not None and tensor.dim() == 0:
        raise ValueError("lwcc: alltoall deals out rows, so it needs a tensor of at least one dimension")
    if rows is not None and (len(rows) != ranks or min(rows) < 0 or sum(rows) != len(tensor)):
        raise ValueError(
            f"lwcc: alltoall with splits {rows}: need one number >= 0 for each of {ranks} ranks, with the sum "
            f"{len(tensor)}"
        )
    call = Call(core.ALLTOALL, "", process_set=process_set, splits=rows, algorithm=algorithm)
    return engine.named(call, name, None)[0]


def alltoall(
    tensor: torch.Tensor, splits: Splits = None, name: Optional[str] = None, process_set: Optional[ProcessSet] = None,
    *, algorithm: Optional[Choice] = None,
) -> Any:  # fmt: skip
    """Send rows of `tensor` to each rank; return the rows received, in rank order.

    Args:
        tensor: at least one dimension.
        splits: rows for each rank, their sum is the first dimension. None: equal parts.
        name: see the module's text; so for `process_set`.
        process_set: the ranks that take part.

    Returns:
        The rows; with `splits` the pair (rows, received_splits), the latter an int32 tensor.
    """
    done = autograd.run([_alltoall(tensor, splits, name, process_set, algorithm)], [tensor])
    return _one(done) if splits is None else _with_splits(done)


def alltoall_async(
    tensor: torch.Tensor, splits: Splits = None, name: Optional[str] = None, process_set: Optional[ProcessSet] = None,
    *, algorithm: Optional[Choice] = None,
) -> int:  # fmt: skip
    """Start an `alltoall`; return its handle."""
    tickets = engine.start([_alltoall(tensor, splits, name, process_set, algorithm)], [tensor])
    return hold(tickets, _one if splits is None else _with_splits)


def _scatter(
    op: int, scales: tuple[float, float], process_set: Optional[ProcessSet], algorithm: Optional[Choice]
) -> Call:
    kind = core.as_op(op)
    if kind not in (Op.AVERAGE, Op.SUM):
        raise ValueError(f"lwcc: reducescatter takes op=Average or Sum, not {kind.name.title()}")
    return Call(core.REDUCESCATTER, "", kind, 0, *scales, process_set, algorithm=algorithm)


def reducescatter(
    tensor: torch.Tensor, name: Optional[str] = None, compression: type[Compressor] = Compression.none,
    op: int = Op.AVERAGE, process_set: Optional[ProcessSet] = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, *, algorithm: Optional[Choice] = None,
) -> torch.Tensor:  # fmt: skip
    """Reduce over the ranks and return this rank's rows; where they don't divide, the first ranks get one more."""
    call = _scatter(op, (prescale_factor, postscale_factor), process_set, algorithm)
    return _reduced(call, engine.named(call, name, None), [tensor], compression)[0]


def reducescatter_async(
    tensor: torch.Tensor, name: Optional[str] = None, op: int = Op.AVERAGE,
    process_set: Optional[ProcessSet] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0, *,
    algorithm: Optional[Choice] = None,
) -> int:  # fmt: skip
    """Start a `reducescatter`; return its handle."""
    call = _scatter(op, (prescale_factor, postscale_factor), process_set, algorithm)
    return hold(engine.start(engine.named(call, name, None), [tensor]), _one)


def grouped_reducescatter(
    tensors: Tensors, name: Optional[str] = None, compression: type[Compressor] = Compression.none,
    op: int = Op.AVERAGE, process_set: Optional[ProcessSet] = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, *, algorithm: Optional[Choice] = None,
) -> list[torch.Tensor]:  # fmt: skip
    """`reducescatter` several tensors as one unit."""
    call = _scatter(op, (prescale_factor, postscale_factor), process_set, algorithm)
    return _reduced(call, engine.named(call, name, len(tensors)), tensors, compression)


def grouped_reducescatter_async(
    tensors: Tensors, name: Optional[str] = None, op: int = Op.AVERAGE,
    process_set: Optional[ProcessSet] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0, *,
    algorithm: Optional[Choice] = None,
) -> int:  # fmt: skip
    """Start a `grouped_reducescatter`; return one handle for the group."""
    call = _scatter(op, (prescale_factor, postscale_factor), process_set, algorithm)
    return hold(engine.start(engine.named(call, name, len(tensors)), tensors), _all)


def barrier(process_set: Optional[ProcessSet] = None, *, algorithm: Optional[Choice] = None) -> None:
    """Return when every rank of the set has called it."""
    name = engine.unnamed.next(core.BARRIER, process_set)
    collectives.barrier(name=name, process_set=process_set, algorithm=algorithm)
