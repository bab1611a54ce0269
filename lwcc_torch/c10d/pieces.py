"""Tensors as torch.distributed gives them, as contiguous memory for the core."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional

import torch

from lwcc_torch import tensor as memory

Settle = Callable[[], None]


class Piece(NamedTuple):
    """Contiguous memory: `length` elements of `code` at `pointer`; `data` owns it and is to be kept alive.

    `width` elements make one of the tensor: 1, or more if it is of a type that the core does not know.
    """

    data: torch.Tensor
    pointer: int
    length: int
    code: int
    width: int = 1


def piece(tensor: torch.Tensor, what: str, moved: bool = True) -> Piece:
    """Return the elements of a tensor in order: its own memory if that is contiguous, else a copy.

    Args:
        tensor: dense, on the CPU.
        what: the collective, for messages.
        moved: only moved, not computed with; then it may be of any type.

    Raises:
        TypeError: a type that cannot be reduced.
        ValueError: not on the CPU, not dense, or without memory of its own.
    """
    data = tensor.detach()
    if data.device.type == "cpu" and data.layout is torch.strided:
        memory.address(data, what)
    if not data.is_contiguous() or data.is_conj() or data.is_neg():
        data = data.resolve_conj().resolve_neg().contiguous()
    code = memory.CODES.get(data.dtype)
    if code is None or data.device.type != "cpu" or data.layout is not torch.strided:
        data = _unusual(data, what, moved)
        code = memory.CODES[data.dtype]
    count = data.numel()
    return Piece(data, memory.address(data, what), count, code, tensor.element_size() // data.element_size())


def _unusual(data: torch.Tensor, what: str, moved: bool) -> torch.Tensor:
    if moved and data.device.type == "cpu" and data.layout is torch.strided:
        return data.reshape(-1).view(torch.uint8)
    memory.check(data, what)
    return torch.view_as_real(data)


def place(tensor: torch.Tensor, what: str, moved: bool = True) -> tuple[Piece, list[Settle]]:
    """Return memory for a result (with the tensor's elements in it), and what brings it into the tensor afterwards."""
    made = piece(tensor, what, moved)
    target = tensor.detach()
    if target.is_contiguous() and not target.is_conj() and not target.is_neg():
        return made, []
    return made, [lambda: spread([target], made.data)]


def scratch(like: Piece, count: int) -> Piece:
    """Return fresh memory for `count` elements of the type of `like`."""
    data = torch.empty(count, dtype=like.data.dtype)
    return Piece(data, memory.address(data, "scratch"), count, like.code)


def joined(tensors: Sequence[torch.Tensor], what: str, moved: bool = True) -> Piece:
    """Return the elements of all tensors, one after the other; a copy, unless there is only one tensor.

    Raises:
        ValueError: different types.
    """
    if len(tensors) == 1:
        return piece(tensors[0], what, moved)
    if len({t.dtype for t in tensors}) > 1:
        raise ValueError(f"lwcc: {what} needs tensors of one type, not {sorted({str(t.dtype) for t in tensors})}")
    return piece(torch.cat([t.detach().reshape(-1) for t in tensors]), what, moved)


def spread(tensors: Sequence[torch.Tensor], data: torch.Tensor) -> None:
    """Deal out the elements of `data` to the tensors, in order; types and total fit."""
    at, flat = 0, data.reshape(-1)
    if tensors and flat.dtype != tensors[0].dtype:
        kind = tensors[0].dtype
        flat = torch.view_as_complex(flat.view(-1, 2)) if kind.is_complex and data.dtype.is_floating_point else flat
        flat = flat if flat.dtype == kind else flat.view(kind)
    for tensor in tensors:
        n = math.prod(tensor.shape)
        tensor.detach().copy_(flat[at : at + n].view(tensor.shape))
        at += n


def same_kind(tensors: Sequence[torch.Tensor], like: torch.Tensor, what: str, count: Optional[int] = None) -> None:
    """Refuse tensors of another type than `like`, whose bytes the core would write past their ends or misread.

    Args:
        tensors: outputs, or the inputs of an output.
        like: what is sent to them, or where they go.
        what: the collective and which tensors, for messages.
        count: how many elements each of them has to have; None: any number.

    Raises:
        ValueError: naming the first.
    """
    for i, tensor in enumerate(tensors):
        if tensor.dtype != like.dtype:
            raise ValueError(f"lwcc: {what}: tensor {i} is {tensor.dtype}, but {like.dtype} is needed")
        if count is not None and tensor.numel() != count:
            raise ValueError(f"lwcc: {what}: tensor {i} has {tensor.numel()} elements, expected {count}")
