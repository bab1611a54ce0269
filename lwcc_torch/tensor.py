"""The only file that knows how torch stores memory: a tensor as (address, shape, dtype code), and memory as a tensor.

A tensor is handed over by address; whoever submits it keeps the tensor alive until the ticket is done. Complex tensors
travel as pairs of real numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from lwcc import dtypes, errors, memory

CODES: dict[torch.dtype, int] = {
    getattr(torch, name): code for name, code in dtypes.CODES.items() if hasattr(torch, name)
}
# float8 types: they are moved as bytes, and the core has no arithmetic for them
MOVED = frozenset(t for name, t in vars(torch).items() if name.startswith("float8_") and isinstance(t, torch.dtype))
COMPLEX = (torch.complex32, torch.complex64, torch.complex128)  # as pairs of real numbers that CODES has
_EMPTY = torch.zeros(64, dtype=torch.uint8)  # lends its address to tensors without elements


class Region(NamedTuple):
    """What the core is told of a tensor: `pointer` as int, `shape` in elements of `code`, an LWCC dtype."""

    pointer: int
    shape: tuple[int, ...]
    code: int


def check(tensor: Any, what: str) -> None:
    """Refuse what no collective can work on.

    Raises:
        TypeError: not a tensor, or of an element type without collectives.
        ValueError: not in CPU memory, without memory of its own, or not dense.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"lwcc: {what} needs a torch.Tensor, not {type(tensor).__name__}")
    if tensor.device.type != "cpu":
        raise ValueError(f"lwcc: {what} works on CPU tensors; this one is on {tensor.device}: pass tensor.cpu()")
    if tensor.layout is not torch.strided:
        raise ValueError(f"lwcc: {what} works on dense tensors, not {tensor.layout}; see sparse_allreduce_async")
    if tensor.dtype not in CODES and tensor.dtype not in COMPLEX:
        advice = (
            "; broadcast, allgather and alltoall do move it: reduce tensor.float()" if tensor.dtype in MOVED else ""
        )
        known = ", ".join(str(dtype)[6:] for dtype in (*CODES, *COMPLEX))
        raise TypeError(f"lwcc: {what}: no collective for elements of type {tensor.dtype}, but for {known}{advice}")
    address(tensor, what)


def address(tensor: torch.Tensor, what: str) -> int:
    """Return where the elements are; without elements, an address that nobody reads.

    Raises:
        ValueError: nowhere: with wrappers (DTensor, FakeTensor) and where the storage was freed, by FSDP for example.
    """
    if not tensor.numel():
        return _EMPTY.data_ptr()
    try:
        pointer = tensor.data_ptr()
    except RuntimeError:  # torch's own words for tensors of torch.func
        pointer = 0
    if not pointer or tensor.untyped_storage().nbytes() == 0:
        kind = type(tensor).__name__
        raise ValueError(
            f"lwcc: {what}: this {kind} of shape {tuple(tensor.shape)} has no memory of its own: its storage was "
            "freed, or it wraps other tensors (pass those, as to_local() of a DTensor)"
        )
    return pointer


def source(tensor: torch.Tensor, what: str) -> torch.Tensor:
    """Return a contiguous, real tensor with the data of `tensor`; a copy only if it is not contiguous."""
    check(tensor, what)
    return _real(tensor.detach().contiguous())


def target(tensor: torch.Tensor, what: str) -> torch.Tensor:
    """Return a contiguous, real view that shares the memory of `tensor`, to be written in place.

    Raises:
        ValueError: the tensor is not contiguous.
    """
    check(tensor, what)
    if not tensor.is_contiguous():
        raise ValueError(
            f"lwcc: {what} works in place, so it needs a contiguous tensor; this one has shape {tuple(tensor.shape)} "
            f"and strides {tensor.stride()}: use the form without underscore, or tensor.contiguous()"
        )
    return _real(tensor.detach())


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """View complex numbers as pairs of real ones; resolve the conjugate and negative bits that views may carry."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj()).resolve_neg()
    return tensor.resolve_neg()


def region(tensor: torch.Tensor) -> Region:
    """Describe a contiguous, real tensor; it has to be kept alive by the caller."""
    # PATH 2/9: from a tensor to address, shape and dtype code
    return Region(address(tensor, "collective"), tuple(tensor.shape), CODES[tensor.dtype])


def adopt(buffer: Any, like: torch.Tensor, first_dim: int) -> torch.Tensor:
    """Return the memory of `buffer` as a tensor of `first_dim` rows, else of shape and type of `like`."""
    shape = (first_dim, *like.shape[1:])
    if math.prod(shape) == 0:
        return torch.empty(shape, dtype=like.dtype)
    return torch.frombuffer(buffer, dtype=like.dtype).view(shape)


def touched(tensors: Iterable[torch.Tensor]) -> None:
    """Tell autograd that these tensors were written, as it cannot see writes through an address."""
    with_counter = [t for t in tensors if not t.is_inference()]
    if with_counter:
        torch.autograd.graph.increment_version(with_counter)


def registered(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return `count` zeros in memory that every rank of the node maps; in plain memory where that is refused."""
    nbytes = count * dtype.itemsize
    if nbytes == 0:
        return torch.zeros(count, dtype=dtype)
    try:
        array = memory.empty(nbytes, "uint8")
    except errors.SystemFailure:
        return torch.zeros(count, dtype=dtype)  # slower, not wrong; the core has said why in its log
    return torch.frombuffer(array, dtype=dtype)


def dense_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides that a gradient of `tensor` has: its own if it is dense, else those of a compact copy."""
    strides: tuple[int, ...] = torch.empty_like(tensor, device="meta").stride()
    return strides
