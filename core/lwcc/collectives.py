"""The collectives on arrays: blocking, asynchronous (`_async`, return a Ticket) and in place (trailing underscore).

`array` is anything with the buffer protocol or DLPack, numpy first (`lwcc.buffer`); results are numpy arrays of the
same element type. An input that is not C-contiguous is copied. Until an asynchronous call is complete its array must
not be changed. Keywords that all share:

    name            matches the call with those of the other ranks, in any order. Without one the call is named
                    "<collective>.noname.<n>", so that every rank has to issue its unnamed calls in the same order; a
                    name that comes again (the same in each iteration) is negotiated once and then fast.
    process_set     the ranks that take part; default all.
    dtype           what the bytes mean, where numpy can't say it: "bfloat16" for a uint16 array.
    priority        higher goes first among the calls that are ready.
    algorithm       an `@lwcc.algorithm`, "file.py:name", or a built-in name (`lwcc.algorithms`); default: see `use`.
    prescale_factor, postscale_factor       multiply before and after the reduction; floating types only.

All raise ValueError for a wrong argument (nothing was submitted then), and from the blocking call or `Ticket.wait`:
Mismatch (the ranks disagree; on every rank; the job can go on), PeerLost, Timeout (stalled), ShutDown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np

from lwcc import buffer, context, ops
from lwcc._native import ffi
from lwcc.ops import Average, Ticket

if TYPE_CHECKING:
    from lwcc.authoring import Choice
    from lwcc.process_sets import ProcessSet

_view = ffi.from_buffer


def set_id(process_set: Optional[ProcessSet]) -> int:
    """Return the id of a set; ValueError if it was not added, or was removed; TypeError if it is none."""
    if process_set is None:
        return 0
    number: Optional[int] = getattr(process_set, "process_set_id", -1)
    if number == -1:
        raise TypeError(f"lwcc: process_set={process_set!r}: give the ProcessSet that add_process_set returned")
    if number is None:
        raise ValueError(f"lwcc: {process_set!r} is not in use; call add_process_set first, on every rank")
    return number


def _into(fields: tuple[Any, ...], source: Any, target: Any, name: Optional[str]) -> None:
    """Run a call whose output has the input's shape."""
    memory = _view(source)
    into = memory if target is source else _view(target)
    ops.run(ops.unnamed(fields[0], fields[5]) if name is None else name, fields, memory, into, (memory, into))


def _into_async(fields: tuple[Any, ...], source: Any, target: Any, name: Optional[str], value: Any) -> Ticket:
    """Start such a call; the ticket's result is `value`."""
    memory = _view(source)
    into = memory if target is source else _view(target)
    called = ops.unnamed(fields[0], fields[5]) if name is None else name
    return Ticket(ops.submit(called, fields, memory, into), called, (memory, into), lambda _: value)


def _late(fields: tuple[Any, ...], source: Any, name: Optional[str]) -> Any:
    """Run a call whose output's first dimension is known only at the end; the library allocates."""
    memory = _view(source)
    called = ops.unnamed(fields[0], fields[5]) if name is None else name
    ticket = ops.complete(called, fields, memory, ffi.NULL, memory)
    try:
        return _taker(source, with_splits=fields[6] is not None)(ticket)
    finally:
        ops.release(ticket)


def _late_async(fields: tuple[Any, ...], source: Any, name: Optional[str]) -> Ticket:
    """Start such a call."""
    memory = _view(source)
    called = ops.unnamed(fields[0], fields[5]) if name is None else name
    number = ops.submit(called, fields, memory, ffi.NULL)
    return Ticket(number, called, memory, _taker(source, with_splits=fields[6] is not None))


def _taker(array: Any, *, with_splits: bool) -> Callable[[int], Any]:
    dtype, tail = array.dtype, array.shape[1:]

    def take(ticket: int) -> Any:
        made = ops.result(ticket)
        memory = np.frombuffer(ops.take_buffer(ticket), np.uint8)
        out = memory.view(dtype).reshape((made.first_dim, *tail))
        return (out, np.array(made.splits or (), np.int64)) if with_splits else out

    return take


def allreduce(
    array: Any,
    *,
    name: Optional[str] = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Optional[ProcessSet] = None,
    dtype: Optional[str] = None,
    priority: int = 0,
    algorithm: Optional[Choice] = None,
) -> Any:
    """Reduce `array` over the ranks; return the result, of the same shape and element type, on every rank.

    Args:
        array: same shape and element type on every rank; any number of dimensions and elements, also 0.
        name: see the module's text; so for the other keywords.
        op: Average (default), Sum, Min, Max, Product. Integers: Average rounds towards zero; Sum and
            Product wrap. bool: Sum and Max are or, Product and Min are and; no Average.
        prescale_factor: multiplies each rank's input.
        postscale_factor: multiplies the result.
        process_set: the ranks that take part.
        dtype: "bfloat16" for a uint16 array.
        priority: higher goes first.
        algorithm: name of one.

    Raises:
        ValueError: a wrong argument. Mismatch, PeerLost, Timeout, ShutDown: see the module's text.
    """
    source, code = buffer.source(array, dtype)
    number = 0 if process_set is None else set_id(process_set)
    scales = prescale_factor, postscale_factor
    fields = (ops.ALLREDUCE, source.shape, code, op, 0, number, None, *scales, priority, algorithm)
    out = np.empty_like(source)
    _into(fields, source, out, name)
    return out


def allreduce_(
    array: Any, *, name: Optional[str] = None, op: int = Average, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: Optional[ProcessSet] = None, dtype: Optional[str] = None,
    priority: int = 0, algorithm: Optional[Choice] = None,
) -> Any:  # fmt: skip
    """Reduce `array` in place (writable and C-contiguous, else ValueError) and return it; else as `allreduce`."""
    target, code = buffer.target(array, dtype)
    number = 0 if process_set is None else set_id(process_set)
    scales = prescale_factor, postscale_factor
    fields = (ops.ALLREDUCE, target.shape, code, op, 0, number, None, *scales, priority, algorithm)
    _into(fields, target, target, name)
    return array


def allreduce_async(
    array: Any, *, name: Optional[str] = None, op: int = Average, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: Optional[ProcessSet] = None, dtype: Optional[str] = None,
    priority: int = 0, algorithm: Optional[Choice] = None,
) -> Ticket:  # fmt: skip
    """Start an `allreduce`; the ticket's result is the reduced array."""
    source, code = buffer.source(array, dtype)
    number = 0 if process_set is None else set_id(process_set)
    scales = prescale_factor, postscale_factor
    fields = (ops.ALLREDUCE, source.shape, code, op, 0, number, None, *scales, priority, algorithm)
    out = np.empty_like(source)
    return _into_async(fields, source, out, name, out)


def allreduce_async_(
    array: Any, *, name: Optional[str] = None, op: int = Average, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: Optional[ProcessSet] = None, dtype: Optional[str] = None,
    priority: int = 0, algorithm: Optional[Choice] = None,
) -> Ticket:  # fmt: skip
    """Start an `allreduce_`; the ticket's result is `array` itself."""
    target, code = buffer.target(array, dtype)
    number = 0 if process_set is None else set_id(process_set)
    scales = prescale_factor, postscale_factor
    fields = (ops.ALLREDUCE, target.shape, code, op, 0, number, None, *scales, priority, algorithm)
    return _into_async(fields, target, target, name, array)


def broadcast(
    array: Any,
    root_rank: int,
    *,
    name: Optional[str] = None,
    process_set: Optional[ProcessSet] = None,
    dtype: Optional[str] = None,
    priority: int = 0,
    algorithm: Optional[Choice] = None,
) -> Any:
    """Return the array of `root_rank` (a global rank, also within a process set); `array` has its shape everywhere."""
    source, code = buffer.source(array, dtype)
    fields = _spreading(source, code, root_rank, process_set, (priority, algorithm))
    out = np.empty_like(source)
    _into(fields, source, out, name)
    return out


def broadcast_async(
    array: Any,
    root_rank: int,
    *,
    name: Optional[str] = None,
    process_set: Optional[ProcessSet] = None,
    dtype: Optional[str] = None,
    priority: int = 0,
    algorithm: Optional[Choice] = None,
) -> Ticket:
    """Start a `broadcast`; the ticket's result is the array."""
    source, code = buffer.source(array, dtype)
    fields = _spreading(source, code, root_rank, process_set, (priority, algorithm))
    out = np.empty_like(source)
    return _into_async(fields, source, out, name, out)


def broadcast_(
    array: Any,
    root_rank: int,
    *,
    name: Optional[str] = None,
    process_set: Optional[ProcessSet] = None,
    dtype: Optional[str] = None,
    priority: int = 0,
    algorithm: Optional[Choice] = None,
) -> Any:
    """Overwrite `array` (writable, C-contiguous) with that of `root_rank` and return it."""
    target, code = buffer.target(array, dtype)
    fields = _spreading(target, code, root_rank, process_set, (priority, algorithm))
    _into(fields, target, target, name)
    return array


def broadcast_async_(
    array: Any,
    root_rank: int,
    *,
    name: Optional[str] = None,
    process_set: Optional[ProcessSet] = None,
    dtype: Optional[str] = None,
    priority: int = 0,
    algorithm: Optional[Choice] = None,
) -> Ticket:
    """Start a `broadcast_`; the ticket's result is `array` itself."""
    target, code = buffer.target(array, dtype)
    fields = _spreading(target, code, root_rank, process_set, (priority, algorithm))
    return _into_async(fields, target, target, name, array)


def _spreading(
    array: Any, code: int, root_rank: int, process_set: Optional[ProcessSet], rest: tuple[Any, Any]
) -> tuple[Any, ...]:
    number = 0 if process_set is None else set_id(process_set)
    root = ops.whole(root_rank, "root_rank")
    return (ops.BROADCAST, array.shape, code, 1, root, number, None, 1.0, 1.0, *rest)


def allgather(
    array: Any, *, name: Optional[str] = None, process_set: Optional[ProcessSet] = None, dtype: Optional[str] = None,
    priority: int = 0, algorithm: Optional[Choice] = None,
) -> Any:  # fmt: skip
    """Return the arrays of all ranks, concatenated along dimension 0 in rank order.

    First dimensions may differ and may be 0; the others agree. A 0-d array counts as one row.
    """
    rows, fields = _gathering(array, process_set, dtype, (priority, algorithm))
    return _late(fields, rows, name)


def allgather_async(
    array: Any, *, name: Optional[str] = None, process_set: Optional[ProcessSet] = None, dtype: Optional[str] = None,
    priority: int = 0, algorithm: Optional[Choice] = None,
) -> Ticket:  # fmt: skip
    """Start an `allgather`; the ticket's result is the concatenation."""
    rows, fields = _gathering(array, process_set, dtype, (priority, algorithm))
    return _late_async(fields, rows, name)


def _gathering(
    array: Any, process_set: Optional[ProcessSet], dtype: Optional[str], rest: tuple[Any, Any]
) -> tuple[Any, tuple[Any, ...]]:
    source, code = buffer.source(array, dtype)
    rows = source.reshape(1) if source.ndim == 0 else source
    return rows, (ops.ALLGATHER, rows.shape, code, 1, 0, set_id(process_set), None, 1.0, 1.0, *rest)


def reducescatter(
    array: Any,
    *,
    name: Optional[str] = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Optional[ProcessSet] = None,
    dtype: Optional[str] = None,
    priority: int = 0,
    algorithm: Optional[Choice] = None,
) -> Any:
    """Reduce over the ranks and return this rank's part of dimension 0.

    Rows are dealt in rank order; where they do not divide evenly the first ranks get one more. A 0-d array is a
    ValueError.
    """
    source, code = _with_rows(array, dtype, "reducescatter")
    scales = prescale_factor, postscale_factor
    fields = (ops.REDUCESCATTER, source.shape, code, op, 0, set_id(process_set), None, *scales, priority, algorithm)
    return _late(fields, source, name)


def reducescatter_async(
    array: Any, *, name: Optional[str] = None, op: int = Average, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: Optional[ProcessSet] = None, dtype: Optional[str] = None,
    priority: int = 0, algorithm: Optional[Choice] = None,
) -> Ticket:  # fmt: skip
    """Start a `reducescatter`; the ticket's result is this rank's part."""
    source, code = _with_rows(array, dtype, "reducescatter")
    scales = prescale_factor, postscale_factor
    fields = (ops.REDUCESCATTER, source.shape, code, op, 0, set_id(process_set), None, *scales, priority, algorithm)
    return _late_async(fields, source, name)


def alltoall(
    array: Any, splits: Any = None, *, name: Optional[str] = None, process_set: Optional[ProcessSet] = None,
    dtype: Optional[str] = None, priority: int = 0, algorithm: Optional[Choice] = None,
) -> Any:  # fmt: skip
    """Send rows of `array` to each rank and return the rows received, in rank order.

    Args:
        array: at least one dimension.
        splits: how many rows go to each rank of the set; their sum is the first dimension. None: equal parts.
        name: see the module's text; so for the other keywords.
        process_set: the ranks that take part.
        dtype: "bfloat16" for a uint16 array.
        priority: higher goes first.
        algorithm: name of one.

    Returns:
        The rows; with `splits`, the pair (rows, received_splits), the latter an int64 array.
    """
    source, fields = _dealing(array, splits, process_set, dtype, (priority, algorithm))
    return _late(fields, source, name)


def alltoall_async(
    array: Any, splits: Any = None, *, name: Optional[str] = None, process_set: Optional[ProcessSet] = None,
    dtype: Optional[str] = None, priority: int = 0, algorithm: Optional[Choice] = None,
) -> Ticket:  # fmt: skip
    """Start an `alltoall`; the ticket's result is what `alltoall` returns."""
    source, fields = _dealing(array, splits, process_set, dtype, (priority, algorithm))
    return _late_async(fields, source, name)


def _dealing(
    array: Any, splits: Any, process_set: Optional[ProcessSet], dtype: Optional[str], rest: tuple[Any, Any]
) -> tuple[Any, tuple[Any, ...]]:
    source, code = _with_rows(array, dtype, "alltoall")
    rows = None if splits is None else tuple(ops.whole(n, "splits") for n in splits)
    if rows is not None and (len(rows) != _members(process_set) or min(rows) < 0 or sum(rows) != source.shape[0]):
        raise ValueError(
            f"lwcc: alltoall with splits {rows}: need one number >= 0 for each of {_members(process_set)} ranks, with "
            f"the sum {source.shape[0]}"
        )
    return source, (ops.ALLTOALL, source.shape, code, 1, 0, set_id(process_set), rows, 1.0, 1.0, *rest)


def _members(process_set: Optional[ProcessSet]) -> int:
    number = context.size() if process_set is None else process_set.size()
    return number or 0


def _with_rows(array: Any, dtype: Optional[str], what: str) -> tuple[Any, int]:
    """Return what `buffer.source` does; ValueError if there are no rows."""
    source, code = buffer.source(array, dtype)
    if source.ndim == 0:
        raise ValueError(f"lwcc: {what} deals out rows, so it needs an array of at least one dimension, not a 0-d one")
    return source, code


def barrier(
    *, name: Optional[str] = None, process_set: Optional[ProcessSet] = None, algorithm: Optional[Choice] = None
) -> None:
    """Return when every rank of the set has called it."""
    fields = (ops.BARRIER, (), 0, 1, 0, set_id(process_set), None, 1.0, 1.0, 0, algorithm)
    ops.run(ops.unnamed(ops.BARRIER, fields[5]) if name is None else name, fields, 0, 0, None)


def barrier_async(
    *, name: Optional[str] = None, process_set: Optional[ProcessSet] = None, algorithm: Optional[Choice] = None
) -> Ticket:
    """Start a `barrier`; the ticket is done when every rank has started it."""
    fields = (ops.BARRIER, (), 0, 1, 0, set_id(process_set), None, 1.0, 1.0, 0, algorithm)
    called = ops.unnamed(ops.BARRIER, fields[5]) if name is None else name
    number = ops.submit(called, fields, 0, 0)
    return Ticket(number, called, None, lambda _: None)
