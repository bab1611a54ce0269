"""Element types: names, the codes of lwcc.h, and numpy's dtypes.

bfloat16 is not a numpy type. With the package `ml_dtypes` its dtype is known here; without it, pass a uint16 array
and say `dtype="bfloat16"`.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

NAMES = (
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "bool",
    "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
CODES: dict[str, int] = {name: code for code, name in enumerate(NAMES)}
ITEMSIZE = (1, 1, 2, 2, 4, 4, 8, 8, 1, 2, 2, 4, 8)
BFLOAT16 = CODES["bfloat16"]

by_numpy: dict[Any, int] = {np.dtype(name): code for name, code in CODES.items() if name != "bfloat16"}


def code_of(dtype: Any, said: Optional[str] = None) -> int:
    """Return the code of a numpy dtype.

    Args:
        dtype: the array's numpy dtype.
        said: the caller's `dtype=` argument, which names what the bytes mean; same item size as `dtype`.

    Raises:
        TypeError: no such element type here, or foreign byte order.
        ValueError: `said` is unknown or does not fit.
    """
    if said is not None:
        return _said(dtype, said)
    code = by_numpy.get(dtype)
    if code is not None:
        return code
    if dtype.name == "bfloat16":
        by_numpy[dtype] = BFLOAT16
        return BFLOAT16
    if not dtype.isnative:
        raise TypeError(
            f"lwcc: byte order of {dtype} is not this machine's; use array.astype(array.dtype.newbyteorder())"
        )
    raise TypeError(f"lwcc: no collective for elements of type {dtype}; known: {', '.join(NAMES)}")


def _said(dtype: Any, said: str) -> int:
    code = CODES.get(said)
    if code is None:
        raise ValueError(f'lwcc: dtype="{said}" is unknown; known: {", ".join(NAMES)}')
    fits = dtype.name == said or (code == BFLOAT16 and dtype.name in ("uint16", "int16"))
    if not fits:
        raise ValueError(f'lwcc: dtype="{said}" does not describe an array of {dtype}')
    return code


def numpy_dtype(code: int) -> Any:
    """Return the numpy dtype for a code; for bfloat16 that of `ml_dtypes`, or uint16 without that package."""
    if code != BFLOAT16:
        return np.dtype(NAMES[code])
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype(np.uint16)
    return np.dtype(ml_dtypes.bfloat16)
