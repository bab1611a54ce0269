"""One request as the core's C structure, with what a script may get wrong in it said in the script's words."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from lwcc._native import ffi

if TYPE_CHECKING:
    from lwcc.authoring import Choice


class Request(NamedTuple):
    """One request of a group; the fields mean what the arguments of `submit_pointer` mean."""

    name: str
    collective: int
    ptr_in: int
    ptr_out: int
    shape: tuple[int, ...]
    dtype: int
    op: int = 1
    root: int = 0
    process_set: int = 0
    splits: Optional[tuple[int, ...]] = None
    prescale: float = 1.0
    postscale: float = 1.0
    priority: int = 0
    algorithm: Optional[Choice] = None

    @property
    def signature(self) -> tuple[Any, ...]:
        """All fields but name and pointers."""
        return (self[1], *self[4:])


def fill(target: Any, signature: tuple[Any, ...]) -> Any:
    """Write all fields but name and pointers; return what has to stay alive as long as the structure."""
    collective, shape, dtype, op, root, process_set, splits, prescale, postscale, priority, algorithm = signature
    if algorithm is not None:
        from lwcc import choosing

        algorithm = choosing.native_name(algorithm, collective, process_set)
    numbers = ("op", op), ("root", root), ("priority", priority), ("prescale", prescale), ("postscale", postscale)
    target.collective, target.dtype, target.process_set = collective, dtype, process_set
    for field, value in numbers:
        try:
            setattr(target, field, value)
        except (TypeError, OverflowError) as error:
            raise type(error)(f"lwcc: {field}={value!r}: {error}") from None
    keep = (
        ffi.new("int64_t[]", shape) if shape else ffi.NULL,
        ffi.NULL if splits is None else ffi.new("int64_t[]", splits),
        ffi.NULL if algorithm is None else ffi.new("char[]", algorithm.encode()),
    )
    target.ndim, (target.shape, target.splits, target.algorithm) = len(shape), keep
    return keep


def whole(number: Any, what: str) -> int:
    """Return an argument that has to be a whole number, of Python's or numpy's types or a tensor.

    To be asked where a number comes from a script: True and 1.0 equal 1, so they would pass as a known signature's.

    Raises:
        TypeError: a bool, a float, or no number at all.
    """
    if type(number) is int:
        return number
    if not isinstance(number, bool) and hasattr(number, "__index__"):
        try:
            return operator.index(number)
        except TypeError:
            pass
    raise TypeError(f"lwcc: {what}={number!r}: must be an int, not {type(number).__name__}")


def c_name(name: str) -> Any:
    """Return a request's name as a C string; TypeError or ValueError for what is none."""
    if not isinstance(name, str):
        raise TypeError(f"lwcc: name={name!r}: a name is a str, not {type(name).__name__}")
    if "\0" in name:
        raise ValueError(f"lwcc: name={name!r}: a name holds no zero character")
    return ffi.new("char[]", name.encode())
