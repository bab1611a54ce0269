"""From whatever holds numbers to a C-contiguous numpy array over the same memory, and its address.

Understood: numpy arrays, `__array_interface__`, the buffer protocol, DLPack on the CPU; as inputs also numbers and
(nested) lists. An input that is not C-contiguous is copied; an output that is not is an error.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from lwcc import dlpack, dtypes
from lwcc._native import ffi

_from_buffer = ffi.from_buffer
_cast = ffi.cast
_known = dtypes.by_numpy
_ADDRESS = ffi.typeof("uintptr_t")


def address(array: Any) -> int:
    """Return the address of a C-contiguous array's first element. The array has to be kept alive by the caller."""
    return int(_cast(_ADDRESS, _from_buffer(array)))


def view(obj: Any) -> Any:
    """Return a numpy array over the memory of `obj`, without a copy.

    Raises:
        TypeError: `obj` holds no memory of numbers on the CPU.
    """
    if isinstance(obj, np.ndarray):
        return obj
    if hasattr(obj, "__array_interface__"):
        return np.asarray(obj)
    try:
        memory = memoryview(obj)
    except TypeError:
        pass
    else:
        return np.asarray(memory)
    if hasattr(obj, "__dlpack__"):
        return dlpack.to_numpy(obj)
    raise TypeError(
        f"lwcc: {type(obj).__name__} gives no access to its memory; pass a numpy array or an object with the buffer "
        "protocol or DLPack"
    )


def source(obj: Any, dtype: Optional[str] = None) -> tuple[Any, int]:
    """Return (C-contiguous array, dtype code) to read from; a copy if `obj` is not contiguous, a number or a list.

    Args:
        obj: anything that `view` understands, or a number, or a list of numbers.
        dtype: what the bytes mean, if the array's own type can't say it ("bfloat16" in uint16).

    Raises:
        TypeError: no access, or no such element type.
        ValueError: `dtype` does not fit.
    """
    array = obj if type(obj) is np.ndarray else np.asarray(obj) if _is_plain(obj) else view(obj)
    code = _known.get(array.dtype) if dtype is None else None
    if code is None:
        code = dtypes.code_of(array.dtype, dtype)
    if not array.flags.c_contiguous:
        array = np.array(array, order="C")
    return array, code


def target(obj: Any, dtype: Optional[str] = None) -> tuple[Any, int]:
    """Return (array over the memory of `obj`, dtype code) to write into.

    Raises:
        TypeError: no access, or no such element type.
        ValueError: read-only, not C-contiguous, or `dtype` does not fit.
    """
    array = obj if type(obj) is np.ndarray else view(obj)
    code = _known.get(array.dtype) if dtype is None else None
    if code is None:
        code = dtypes.code_of(array.dtype, dtype)
    flags = array.flags
    if not flags.writeable:
        raise ValueError(
            "lwcc: the array is read-only, so it can't be changed in place; use the form that returns a result"
        )
    if not flags.c_contiguous:
        raise ValueError(
            f"lwcc: the array (shape {array.shape}, strides {array.strides}) is not C-contiguous, so it can't be "
            "changed in place; use the form that returns a result, or numpy.ascontiguousarray"
        )
    return array, code


def _is_plain(obj: Any) -> bool:
    return isinstance(obj, (int, float, list, tuple, np.generic))
