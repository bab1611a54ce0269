"""What a script may get wrong in the arguments of a collective, said in its words; ops would cut or convert them."""

from __future__ import annotations

import struct
from typing import Any

import tensorflow as tf

from lwcc import ops as core
from lwcc.request import c_name


def number(value: Any, what: str) -> int:
    """Return a rank or the number of a process set, as ops hold it.

    Raises:
        TypeError: no whole number; ValueError: one of more than 32 bits.
    """
    found = core.whole(value, what)
    if not -(2**31) <= found < 2**31:
        raise ValueError(f"lwcc: {what}={found}: there is none of this number")
    return found


def bits(value: Any, what: str) -> int:
    """Return the bits of a scale factor as a double; TypeError if it is no number."""
    if isinstance(value, (str, bytes)) or value is None:
        raise TypeError(f"lwcc: {what}={value!r}: must be a number, not {type(value).__name__}")
    (found,) = struct.unpack("<q", struct.pack("<d", float(value)))
    return int(found)


def name(value: Any) -> str:
    """Return the name of a call; TypeError if it is no str, ValueError if it holds a zero character."""
    if type(value) is not str or "\0" in value:
        c_name(value)  # says what is wrong
    return str(value)


def splits(value: Any) -> Any:
    """Return the rows for each rank as an int64 tensor.

    Raises:
        TypeError: no whole numbers; ValueError: not in one dimension, or none at all.
    """
    found = tf.convert_to_tensor(value)
    if found.shape.rank not in (None, 1) or found.shape.num_elements() == 0:
        raise ValueError(f"lwcc: alltoall with splits of shape {found.shape}: need one number for each rank, or None")
    if not found.dtype.is_integer:
        raise TypeError(f"lwcc: alltoall with splits of dtype {found.dtype.name}: must be whole numbers")
    return tf.cast(found, tf.int64)
