"""Gradient compression on the wire: a narrower floating type."""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf


class Compressor:
    """How a tensor travels. Subclasses turn it into what is sent and back; only reductions by element make sense."""

    wire_dtype: Optional[Any] = None

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Return the tensor to send, and what `decompress` needs."""
        wire = cls.wire_dtype
        if wire is None or not tensor.dtype.is_floating or tensor.dtype.size <= wire.size:
            return tensor, None
        return tf.cast(tensor, wire), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, context: Any) -> Any:
        """Return the tensor in the type that `compress` was given."""
        return tensor if context is None else tf.cast(tensor, context)


class _Half(Compressor):
    wire_dtype = tf.float16


class _BFloat16(Compressor):
    wire_dtype = tf.bfloat16


class Compression:
    """The choices: `none`, `fp16` and `bf16` (half the bytes for float32; other element types travel as they are)."""

    none = Compressor
    fp16 = _Half
    bf16 = _BFloat16
