"""Gradient compression on the wire: a narrower floating type."""

from __future__ import annotations

from typing import Any, Optional

import torch


class Compressor:
    """How a tensor travels. Subclasses turn it into what is sent and back; only reductions by element make sense."""

    wire_dtype: Optional[torch.dtype] = None

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor to send, and what `decompress` needs."""
        wire = cls.wire_for(tensor.dtype)
        return (tensor, None) if wire is None else (tensor.to(wire), tensor.dtype)

    @classmethod
    def decompress(cls, tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """Return the tensor in the type that `compress` was given."""
        return tensor if context is None else tensor.to(context)

    @classmethod
    def wire_for(cls, dtype: torch.dtype) -> Optional[torch.dtype]:
        """Return the type in which elements of `dtype` travel, or None if they travel as they are."""
        wire = cls.wire_dtype
        return wire if wire is not None and dtype.is_floating_point and dtype.itemsize > wire.itemsize else None


def checked(compression: object) -> type[Compressor]:
    """Return it; TypeError for what is no compression, as the name of one."""
    if isinstance(compression, type) and issubclass(compression, Compressor):
        return compression
    if callable(getattr(compression, "compress", None)) and callable(getattr(compression, "decompress", None)):
        return compression  # type: ignore[return-value]  # a user's own
    raise TypeError(f"lwcc: compression={compression!r}: must be Compression.none, .fp16 or .bf16")


class _Half(Compressor):
    wire_dtype = torch.float16


class _BFloat16(Compressor):
    wire_dtype = torch.bfloat16


class Compression:
    """The choices: `none`, `fp16` and `bf16` (half the bytes for float32; other element types travel as they are)."""

    none = Compressor
    fp16 = _Half
    bf16 = _BFloat16
