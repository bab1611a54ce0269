"""Names of collectives in functions: different for what may run at once, and equal on all ranks.

The ops of a graph run side by side, also with the functions that it calls; these run one after the other, as TensorFlow
chains calls that have effects (and chaining.py, in graphs of gradients). So the name of an op has to differ from the
others' of its graph and from those in functions that its graph calls; no more. When a graph is complete, ops of its own
whose names its functions have get a number. So names follow from the graph alone, not from what else was traced before,
or how often: a rank that traces again, perhaps for a shape that it alone has, comes to the names that it had, and
functions traced before keep theirs.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Container
from typing import Any

import tensorflow as tf

# graph -> names of its own ops -> what these were asked for under
_seen: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()


def _free(name: str, taken: Container[str]) -> str:
    """Return the name, with a number if it is taken."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}.{number}"
    return found


def is_ours(kind: str) -> bool:
    """Tell whether an op of this type communicates."""
    return kind.startswith("Lwcc") and kind != "LwccNumber"


def _settle() -> None:
    """Number the ops of the graph that is being left, as its functions are known now."""
    graph = tf.compat.v1.get_default_graph()
    seen = _seen.get(graph, {})
    ours = [op for op in graph.get_operations() if is_ours(op.type)]
    nodes = (node for function in graph.as_graph_def().library.function for node in function.node_def)
    taken = {node.attr["tensor_name"].s.decode() for node in nodes if is_ours(node.op)}
    for op in ours if taken else ():
        name = op.get_attr("tensor_name").decode()
        asked = seen.get(name, name)
        free = _free(asked, taken)
        seen[free] = asked
        taken.add(free)
        if free != name:
            op._set_attr("tensor_name", tf.compat.v1.AttrValue(s=free.encode()))


def unique(name: str) -> str:
    """Return a name for an op that is about to be made: in a graph no other has it, with a number if need be."""
    if tf.executing_eagerly():
        return name
    graph = tf.compat.v1.get_default_graph()
    seen = _seen.setdefault(graph, {})
    asked, name = name, _free(name, seen)
    seen[name] = asked
    callbacks = getattr(graph, "_scope_exit_callbacks", None)  # of functions, while they are traced
    if callbacks is not None and _settle not in callbacks:
        graph._add_scope_exit_callback(_settle)
    return name


def place() -> str:
    """Return where in the program the graph being made is, the same on every rank: "step", or "step.cond_true"."""
    graph, parts = tf.compat.v1.get_default_graph(), []
    while True:
        parts.append(re.sub(r"_\d+$", "", getattr(graph, "name", None) or "graph"))
        outer = getattr(graph, "outer_graph", None)
        if type(graph).__name__ == "FuncGraph" or not getattr(outer, "building_function", False):
            return ".".join(reversed(parts))
        graph = outer  # this one is a branch or the body of a loop
