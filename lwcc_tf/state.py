"""Make the ranks equal: variables, and Python objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Callable, Optional

import lwcc
from lwcc_tf import ops

if TYPE_CHECKING:
    from lwcc.process_sets import ProcessSet


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: Optional[ProcessSet] = None, inplace: bool = False
) -> None:
    """Overwrite variables on all ranks with those of `root_rank`.

    Args:
        variables: of TensorFlow or Keras: `model.variables`, `optimizer.variables`; same number, shapes and types on
            every rank.
        root_rank: a global rank.
        process_set: the ranks that take part.
        inplace: accepted for compatibility.

    Raises:
        ValueError: something that is no variable (use `broadcast_object`).
        tf.errors.FailedPreconditionError: the ranks disagree about a variable, or their number.
    """
    found = [v() if callable(v) and not hasattr(v, "assign") else v for v in variables]
    for i, variable in enumerate(found):
        if not hasattr(variable, "assign"):
            raise ValueError(
                f"lwcc: broadcast_variables: item {i} is {type(variable).__name__}, no variable; use broadcast_object"
            )
    ops.broadcast_(found, root_rank, name=f"broadcast_variables.{len(found)}", process_set=process_set)


def broadcast_object(
    obj: Any = None, root_rank: int = 0, session: Any = None, name: Optional[str] = None,
    process_set: Optional[ProcessSet] = None,
) -> Any:  # fmt: skip
    """Return the object of `root_rank`, pickled on its way, on every rank. Eager only; no session is needed."""
    return lwcc.broadcast_object(obj, root_rank, name=name, process_set=process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: Optional[str] = None, process_set: Optional[ProcessSet] = None
) -> Callable[[Any], Any]:
    """Return a function that broadcasts the object that it is given."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: Optional[str] = None, process_set: Optional[ProcessSet] = None
) -> list[Any]:
    """Return the objects of all ranks, in rank order. Eager only; no session is needed."""
    return lwcc.allgather_object(obj, name=name, process_set=process_set)
