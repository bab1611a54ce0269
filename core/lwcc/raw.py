"""Raw collectives: unnamed, blocking, in program order on every rank, as in MPI. No negotiation, no fusion, no checks
across ranks: a rank that calls something else, or with another size, is undefined behaviour.

Arrays are numpy arrays or have the buffer protocol or DLPack. In place where one array is given; counts are those of
the array. All raise ValueError for a wrong argument, PeerLost, ShutDown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from lwcc import buffer, context
from lwcc._native import ffi, lib
from lwcc.collectives import set_id
from lwcc.ops import Sum

if TYPE_CHECKING:
    from lwcc.process_sets import ProcessSet

_view = ffi.from_buffer


def _check(status: int) -> None:
    if status < 0:
        raise context.failure(status)


def _members(process_set: Optional[ProcessSet]) -> int:
    return context.size() if process_set is None else process_set.size() or 0


def allreduce(
    array: Any,
    op: int = Sum,
    *,
    out: Any = None,
    process_set: Optional[ProcessSet] = None,
    dtype: Optional[str] = None,
) -> Any:
    """Reduce into `out`, or in place without one; return the array written.

    Args:
        array: same shape and type on every rank; C-contiguous.
        op: Sum (default), Average, Min, Max, Product.
        out: same number of elements and element type; does not overlap `array`.
        process_set: the ranks that take part.
        dtype: "bfloat16" for a uint16 array.
    """
    if out is None:
        target, code = buffer.target(array, dtype)
        memory = _view(target)
        _check(lib.lwcc_raw_allreduce(memory, memory, target.size, code, op, set_id(process_set)))
        return array
    source, code = buffer.source(array, dtype)
    target, out_code = buffer.target(out, dtype)
    if out_code != code or target.size != source.size:
        raise ValueError(f"lwcc.raw: out is {target.dtype}[{target.size}], the input {source.dtype}[{source.size}]")
    _check(lib.lwcc_raw_allreduce(_view(source), _view(target), source.size, code, op, set_id(process_set)))
    return out


def broadcast(
    array: Any, root_rank: int, *, process_set: Optional[ProcessSet] = None, dtype: Optional[str] = None
) -> Any:
    """Overwrite `array` with that of `root_rank` (a global rank) and return it."""
    target, code = buffer.target(array, dtype)
    _check(lib.lwcc_raw_broadcast(_view(target), target.size, code, root_rank, set_id(process_set)))
    return array


def allgather(array: Any, *, process_set: Optional[ProcessSet] = None, dtype: Optional[str] = None) -> Any:
    """Return an array of shape (ranks, *array.shape) with the arrays of all ranks, all of one shape."""
    source, code = buffer.source(array, dtype)
    out = np.empty((_members(process_set), *source.shape), source.dtype)
    _check(lib.lwcc_raw_allgather(_view(source), _view(out), source.size, code, set_id(process_set)))
    return out


def reducescatter(
    array: Any, op: int = Sum, *, process_set: Optional[ProcessSet] = None, dtype: Optional[str] = None
) -> Any:
    """Return this rank's part of the reduced array: dimension 0 is the number of ranks, the part is `array[rank]`."""
    source, code = buffer.source(array, dtype)
    _need_row_per_rank(source, process_set)
    out = np.empty(source.shape[1:], source.dtype)
    _check(lib.lwcc_raw_reducescatter(_view(source), _view(out), out.size, code, op, set_id(process_set)))
    return out


def alltoall(array: Any, *, process_set: Optional[ProcessSet] = None, dtype: Optional[str] = None) -> Any:
    """Send `array[i]` to rank i; return an array of the same shape whose row i came from rank i."""
    source, code = buffer.source(array, dtype)
    _need_row_per_rank(source, process_set)
    out = np.empty_like(source)
    count = source.size // source.shape[0]
    _check(lib.lwcc_raw_alltoall(_view(source), _view(out), count, code, set_id(process_set)))
    return out


def _need_row_per_rank(array: Any, process_set: Optional[ProcessSet]) -> None:
    ranks = _members(process_set)
    if array.ndim == 0 or array.shape[0] != ranks:
        raise ValueError(
            f"lwcc.raw: the first dimension must be the number of ranks, {ranks}; the shape is {array.shape}"
        )


def barrier(*, process_set: Optional[ProcessSet] = None) -> None:
    """Return when every rank of the set has called it."""
    _check(lib.lwcc_raw_barrier(set_id(process_set)))


def force_algorithm(collective: str, name: Optional[str]) -> None:
    """Have the calls of all ranks use this algorithm; None: select again. Collective, as `lwcc.use`, which it is."""
    from lwcc import choosing

    choosing.use(name, collective=collective)
