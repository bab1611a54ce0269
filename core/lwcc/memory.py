"""Registered memory: mapped by every rank of the node, so that a collective on it needs no copy."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from lwcc import buffer, context
from lwcc._native import ffi, lib


def empty(shape: Union[int, Sequence[int]], dtype: Any = "float32") -> Any:
    """Return a zeroed numpy array in registered memory, 64-byte aligned, freed with its last view.

    The array must not be used after `lwcc.shutdown`, which takes the memory back.

    Args:
        shape: as for numpy.empty.
        dtype: a numpy dtype or its name.

    Raises:
        ValueError: before init.
        SystemFailure: no memory that the ranks can share.
    """
    context.world()
    kind = np.dtype(dtype)
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    nbytes = math.prod(sizes) * kind.itemsize
    if nbytes == 0:
        return np.empty(sizes, kind)
    pointer = lib.lwcc_alloc(nbytes)
    if pointer == ffi.NULL:
        raise context.failure(lib.LWCC_ERR_SYSTEM)
    epoch, finalizing = context.epoch(), sys.is_finalizing

    def free(p: Any) -> None:
        # at shutdown all was freed; when the interpreter ends, after that, this module's names are gone
        if not finalizing() and context.epoch() == epoch:
            lib.lwcc_free(p)

    memory = ffi.buffer(ffi.gc(pointer, free, nbytes), nbytes)
    return np.frombuffer(memory, np.uint8).view(kind).reshape(sizes)


def is_registered(array: Any) -> bool:
    """Tell whether all of a C-contiguous array lies in registered memory of this rank."""
    found, _ = buffer.source(array)
    return bool(lib.lwcc_is_registered(ffi.from_buffer(found), found.nbytes))
