"""From a call on tensors to requests, and from tickets back to tensors. `ops` gives this its public names."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

import torch

from lwcc import context, naming
from lwcc import ops as core
from lwcc.collectives import set_id
from lwcc.ops import Op
from lwcc.ops import reduction as reduction
from lwcc.process_sets import global_process_set
from lwcc_torch import tensor as memory

if TYPE_CHECKING:
    from lwcc.authoring import Choice
    from lwcc.process_sets import ProcessSet

_MOVING = (core.BROADCAST, core.ALLGATHER, core.ALLTOALL)
_SAME_SHAPE = (core.ALLREDUCE, core.BROADCAST)  # the other collectives' outputs are sized, and allocated, by the core


class Call(NamedTuple):
    """One collective on one tensor: what its request says beside the tensor itself."""

    collective: int
    name: str
    op: Op = Op.SUM
    root: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    process_set: Optional[ProcessSet] = None
    splits: Optional[tuple[int, ...]] = None
    in_place: bool = False
    algorithm: Optional[Choice] = None
    counted: bool = False  # its `Done` has to tell how many ranks took part

    @property
    def title(self) -> str:
        """The name of the collective, for messages."""
        return core.COLLECTIVE_NAMES[self.collective]


class Done(NamedTuple):
    """What a call left: its output, the rows received from each rank (allgather, alltoall), and, if it was to be
    counted or is one of these two, how many ranks took part with data of their own, as others may have joined."""

    output: torch.Tensor
    splits: Optional[tuple[int, ...]] = None
    contributors: int = 0


def members(process_set: Optional[ProcessSet]) -> int:
    """Return the number of ranks that take part."""
    return context.size() if process_set is None else (process_set.size() or 0)


def my_index(process_set: Optional[ProcessSet]) -> int:
    """Return this rank's index in the set."""
    index = context.rank() if process_set is None else process_set.rank()
    return -1 if index is None else index


class _Unnamed:
    """Counts the calls without a name, for each set apart: its members may call what the other ranks don't."""

    def __init__(self) -> None:
        self._epoch = 0
        self._counts: weakref.WeakKeyDictionary[ProcessSet, dict[int, int]] = weakref.WeakKeyDictionary()

    def next(self, collective: int, process_set: Optional[ProcessSet]) -> str:
        """Return the next name; ranks pair up by issuing these calls in the same order, from 0 in each job."""
        if self._epoch != context.epoch():
            self._epoch = context.epoch()
            self._counts.clear()
        counts = self._counts.setdefault(process_set or global_process_set, {})
        number = counts[collective] = counts.get(collective, -1) + 1
        joins = naming.joins_of(set_id(process_set))
        return f"torch.{core.COLLECTIVE_NAMES[collective]}.noname.{joins}{number}"

    def joined(self, process_set: Optional[ProcessSet]) -> None:
        """Count the set's calls anew: some of its ranks have made fewer."""
        self._counts.pop(process_set or global_process_set, None)


unnamed = _Unnamed()


def named(call: Call, name: Optional[str], count: Optional[int]) -> list[Call]:
    """Return the call under its name (`count` None), or those of the `count` members of a group."""
    set_id(call.process_set)  # refuses what is no process set
    base = unnamed.next(call.collective, call.process_set) if name is None else name
    if count is None:
        return [call._replace(name=base)]
    return [call._replace(name=f"{base}[{i}]") for i in range(count)]


def _prepare(call: Call, tensor: torch.Tensor) -> tuple[core.Request, Any, Any]:
    """Return the request, what it needs alive, and the function that makes its `Done` from the ticket."""
    if call.collective in _MOVING and isinstance(tensor, torch.Tensor) and tensor.dtype in memory.MOVED:
        request, keep, finish = _prepare(call, tensor.detach().view(torch.uint8))
        return request, keep, partial(_retyped, finish, tensor, call.in_place)
    if call.collective not in _SAME_SHAPE:
        memory.check(tensor, call.title)
        if tensor.dim() == 0:
            if call.collective != core.ALLGATHER:
                raise ValueError(f"lwcc: {call.title} deals out rows, so it needs a tensor of at least one dimension")
            tensor = tensor.reshape(1)
    data = memory.target(tensor, call.title) if call.in_place else memory.source(tensor, call.title)
    if tensor.is_complex() and call.op in (Op.MIN, Op.MAX, Op.PRODUCT):
        raise ValueError(f"lwcc: {call.title} with op={call.op.name.title()} has no meaning for complex numbers")
    pointer, shape, code = memory.region(data)
    out, pointer_out = data, pointer
    if call.collective not in _SAME_SHAPE:
        pointer_out, finish = 0, partial(_late, data, tensor.is_complex())
    elif call.in_place:
        finish = partial(_written, tensor)
    else:
        out = torch.empty_like(data)
        pointer_out = memory.region(out).pointer
        finish = partial(
            _counted if call.counted else _made, torch.view_as_complex(out) if tensor.is_complex() else out
        )
    request = core.Request(
        call.name, call.collective, pointer, pointer_out, shape, code, int(call.op), call.root,
        set_id(call.process_set), call.splits, call.prescale, call.postscale, 0, call.algorithm,
    )  # fmt: skip
    return request, (data, out), finish


def _retyped(finish: Any, tensor: torch.Tensor, in_place: bool, ticket: int) -> Done:
    done: Done = finish(ticket)
    return done._replace(output=tensor if in_place else done.output.view(tensor.dtype))


def _made(output: torch.Tensor, ticket: int) -> Done:
    return Done(output)


def _counted(output: torch.Tensor, ticket: int) -> Done:
    return Done(output, None, core.result(ticket).contributors)


def _written(tensor: torch.Tensor, ticket: int) -> Done:
    memory.touched([tensor])
    return Done(tensor)


def _late(data: torch.Tensor, is_complex: bool, ticket: int) -> Done:
    """Adopt the output that the core allocated."""
    made = core.result(ticket)
    output = memory.adopt(core.take_buffer(ticket), data, made.first_dim)
    return Done(torch.view_as_complex(output) if is_complex else output, made.splits, made.contributors)


def start(calls: Sequence[Call], tensors: Sequence[torch.Tensor]) -> list[core.Ticket]:
    """Submit one call, or several as one unit; the tickets' results are `Done`.

    Raises:
        TypeError, ValueError: a tensor or an argument that no collective can take; nothing was submitted then.
        LwccError: not initialised, or the job has failed.
    """
    prepared = [_prepare(call, tensor) for call, tensor in zip(calls, tensors)]
    if len(prepared) == 1:
        r = prepared[0][0]
        numbers = [core.submit(r.name, r.signature, r.ptr_in, r.ptr_out)]
    else:
        numbers = core.submit_group([request for request, _, _ in prepared])
    memory.touched([tensor for call, tensor in zip(calls, tensors) if call.in_place])
    return [
        core.Ticket(number, request.name, keep, finish) for number, (request, keep, finish) in zip(numbers, prepared)
    ]


def _complete(call: Call, tensor: torch.Tensor) -> Done:
    """Run one call; this thread drives it."""
    request, keep, made = _prepare(call, tensor)
    if call.in_place:
        memory.touched([tensor])  # also if it fails half-way
    ticket = core.complete(request.name, request.signature, request.ptr_in, request.ptr_out, keep)
    try:
        done: Done = made(ticket)
        return done
    finally:
        core.release(ticket)


def finish(tickets: Sequence[core.Ticket]) -> list[Any]:
    """Wait for all; return their results, or raise the first failure once none is pending."""
    failure: Optional[Exception] = None
    done = []
    for ticket in tickets:
        try:
            done.append(ticket.wait())
        except (RuntimeError, ValueError) as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return done


def run(calls: Sequence[Call], tensors: Sequence[torch.Tensor]) -> list[Done]:
    """Start and finish; raises as these do."""
    return [_complete(calls[0], tensors[0])] if len(calls) == 1 else finish(start(calls, tensors))


def attempt(action: Callable[[], Any], failures: list[Exception]) -> bool:
    """Run the action; note a failure, so that the caller can first end all that it has started."""
    try:
        action()
    except (RuntimeError, ValueError) as error:
        failures.append(error)
        return False
    return True
