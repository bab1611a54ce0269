"""Calls of functions in graphs of gradients run one after the other, if they communicate.

TensorFlow chains calls that have effects while a function is traced, but not in the graph that it makes of a function's
gradients. There, calls of one function that communicates would run side by side, with equal names; and which of them a
rank began first would decide with whose it meets. So each waits for the one before: the order in which gradients
are made is that of the graph, on every rank alike.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable

import tensorflow as tf
from tensorflow.python.framework import ops

from lwcc_tf.names import is_ours

CALL = "StatefulPartitionedCall"  # functions that communicate have effects
Gradient = Callable[..., Any]

_last: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # graph -> its latest call that communicates
_lookup: Callable[[Any], Any] = ops.get_gradient_function


def _communicates(graph: Any, name: str, seen: set[str]) -> bool:
    """Tell whether a function, or one that it calls, has an op of ours."""
    seen.add(name)
    function = graph._get_function(name)
    if function is None:
        return True  # unknown: to wait does no harm
    definition = getattr(function, "definition", None) or function.cached_definition
    for node in definition.node_def:
        if is_ours(node.op):
            return True
        for value in node.attr.values():
            called = value.func.name
            if called and called not in seen and _communicates(graph, called, seen):
                return True
    return False


def _chained(gradient: Gradient) -> Gradient:
    def after_the_last(op: Any, *gradients: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        count, before = len(graph.get_operations()), _last.get(graph)
        with graph.control_dependencies([before] if before is not None else []):
            found = gradient(op, *gradients)
        calls = [made for made in graph.get_operations()[count:] if made.type == CALL]
        if calls:
            _last[graph] = calls[-1]
        return found

    return after_the_last


def _gradient_function(op: Any) -> Any:
    gradient = _lookup(op)
    if gradient is None or op.type != CALL or not _communicates(op.graph, op.get_attr("f").name, set()):
        return gradient
    return _chained(gradient)


def install() -> None:
    """Have TensorFlow ask here for the gradients of calls. More than once does no harm."""
    ops.get_gradient_function = _gradient_function
