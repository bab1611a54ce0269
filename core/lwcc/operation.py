"""How elements are reduced, and Horovod's two arguments that say it."""

from __future__ import annotations

import warnings
from enum import IntEnum
from typing import Optional

from lwcc.request import whole


class Op(IntEnum):
    """How elements are reduced; Horovod's numbers."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5

    __hash__ = int.__hash__  # in C, because every call hashes one


Average, Sum, Adasum, Min, Max, Product = Op


def as_op(op: int) -> Op:
    """Return the operation; ValueError or TypeError for what is none."""
    if type(op) is Op:
        return op
    number = whole(op, "op")
    if number not in Op.__members__.values():
        raise ValueError(f"lwcc: op={op!r}: must be Average, Sum, Adasum, Min, Max or Product")
    return Op(number)


def reduction(average: Optional[bool], op: Optional[int]) -> Op:
    """Return the reduction that Horovod's two arguments mean; for the adapters' public calls.

    Raises:
        ValueError: both are given, or there is no such op; TypeError: it is no int.
    """
    if average is None:
        return Op.AVERAGE if op is None else as_op(op)
    if op is not None:
        raise ValueError("lwcc: give op= or the deprecated average=, not both")
    warnings.warn("average= is deprecated, use op=Average or op=Sum", DeprecationWarning, stacklevel=3)
    return Op.AVERAGE if average else Op.SUM
