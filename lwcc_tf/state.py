"""Make the ranks equal: variables, and Python objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Callable, Optional

import tensorflow as tf

import lwcc
from lwcc_tf import ops

if TYPE_CHECKING:
    from lwcc.process_sets import ProcessSet


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: Optional[ProcessSet] = None, inplace: bool = False
) -> Any:
    """Overwrite variables on all ranks with those of `root_rank`.

    Args:
        variables: of TensorFlow or Keras: `model.variables`, `optimizer.variables`; same number, shapes and types on
            every rank.
        root_rank: a global rank.
        process_set: the ranks that take part.
        inplace: accepted for compatibility.

    Returns:
        None; in a graph of TensorFlow 1 the op that does it, for a session to run.

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
    name = "broadcast_variables"
    if not found and tf.executing_eagerly():  # the others may have some: then they shall hear of it
        ops.broadcast(tf.zeros([0]), root_rank, name=name, process_set=process_set)
    done = ops.broadcast_(found, root_rank, name=name, process_set=process_set)
    in_session = not tf.executing_eagerly() and not tf.compat.v1.get_default_graph().building_function
    return tf.group(*done) if in_session else None


def broadcast_global_variables(root_rank: int) -> Any:
    """Return the op that overwrites all variables of a graph of TensorFlow 1 with those of `root_rank`.

    Raises:
        ValueError: outside of such a graph: there TensorFlow lists no variables; use `broadcast_variables`.
    """
    if tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function:
        raise ValueError(
            "lwcc: broadcast_global_variables is for graphs of TensorFlow 1; here call broadcast_variables(variables, "
            "root_rank)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc, unused-ignore]
    """Gives all ranks the variables of `root_rank` when a session of TensorFlow 1 has been created."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        """`root_rank` is a global rank; `device` is accepted for compatibility."""
        super().__init__()
        self.root_rank = root_rank
        self._op: Any = None

    def begin(self) -> None:
        """Add the op to the graph."""
        self._op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run it."""
        session.run(self._op)


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
