"""From a call on tensors to an op: names, attributes, and what keeps a graph from ordering collectives."""

from __future__ import annotations

import sys
import weakref
import zlib
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import tensorflow as tf

from lwcc import choosing, collectives, context
from lwcc import ops as core
from lwcc.naming import joins_of
from lwcc.ops import Op
from lwcc.ops import reduction as reduction
from lwcc_tf import arguments, library, names

if TYPE_CHECKING:
    from lwcc.authoring import Choice
    from lwcc.process_sets import ProcessSet

try:
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext as _in_xla
except ImportError:  # no public name tells; then XLA itself refuses the ops

    def _in_xla(graph: Any) -> bool:
        return False


class Call(NamedTuple):
    """One collective: what its op says beside the tensors."""

    collective: int
    name: Optional[str]
    op: Op = Op.SUM
    root: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    process_set: Optional[ProcessSet] = None
    algorithm: Optional[Choice] = None

    @property
    def title(self) -> str:
        """The name of the collective, for messages."""
        return core.COLLECTIVE_NAMES[self.collective]


def members(process_set: Optional[ProcessSet]) -> int:
    """Return the number of ranks that take part."""
    return context.size() if process_set is None else (process_set.size() or 0)


def takes_part(process_set: Optional[ProcessSet]) -> bool:
    """Tell whether this rank is a member of the set; ValueError if the set is not in use."""
    return process_set is None or process_set.included()


def set_id(process_set: Optional[ProcessSet]) -> int:
    """Return the id of a set; ValueError if it is not in use, or before init; TypeError if it is none."""
    context.world()
    return collectives.set_id(process_set)


def _unnamed(call: Call) -> tuple[str, bool]:
    """Return a name for a call without one, and whether the kernel has to number the calls."""
    joins = joins_of(set_id(call.process_set))
    ranks = "all" if call.process_set is None else f"{zlib.crc32(repr(call.process_set.ranks).encode()):08x}"
    if tf.executing_eagerly():
        # attributes select a kernel, so that counting here would make one for each call
        return f"tf.{call.title}.{context.epoch()}.{ranks}.{joins}noname", True
    return f"tf.{names.place()}.{call.title}.{ranks}.noname", False


def _refuse_parallel(what: str) -> None:
    """Raise if the function being traced is to run for many elements at once, which ranks would pair up at random."""
    advice = ""
    frame: Optional[FrameType] = sys._getframe(2)
    while frame is not None and not advice:
        kind = type(frame.f_locals.get("self")).__name__ if frame.f_code.co_name == "__init__" else ""
        if frame.f_code.co_name == "_pfor_impl":
            advice = (
                "tf.vectorized_map or a vectorized Jacobian, which run it for all rows at once; call it for the whole "
                "tensor outside, or use tf.map_fn, tape.jacobian(experimental_use_pfor=False)"
            )
        elif kind == "_MapAndBatchDataset" or (kind.startswith("_Parallel") and kind.endswith("Dataset")):
            advice = (
                "a tf.data function with num_parallel_calls, which runs for several elements at once, in no order that "
                "the ranks share; leave num_parallel_calls away, or communicate in the training step"
            )
        frame = frame.f_back
    if advice:
        raise tf.errors.InvalidArgumentError(None, None, f"lwcc: {what} inside {advice}")


def refuse_graph(what: str) -> None:
    """Raise if the function being traced is none that collectives can be in, as one that XLA compiles.

    Raises:
        InvalidArgumentError: it is.
    """
    if tf.executing_eagerly():
        return
    _refuse_parallel(what)
    if _in_xla(tf.compat.v1.get_default_graph()):
        raise tf.errors.InvalidArgumentError(
            None, None,
            f"lwcc: {what} inside a tf.function with jit_compile=True, which XLA cannot compile; use jit_compile=False "
            "for the function that communicates, and True for functions that it calls",
        )  # fmt: skip


_chained: weakref.WeakSet[Any] = weakref.WeakSet()  # graphs whose further calls run in order


def chain() -> list[Any]:
    """Return the graph's collectives so far; its later ones are to wait for what has effects before them."""
    graph = tf.compat.v1.get_default_graph()
    _chained.add(graph)
    return [op for op in graph.get_operations() if op.type.startswith("Lwcc")]


def independent(result: Any) -> Any:
    """Keep tf.function from chaining the op with the others that have effects; return what was given."""
    flat = tf.nest.flatten(result)
    if flat and not tf.executing_eagerly() and flat[0].graph not in _chained:
        manager = getattr(flat[0].graph, "experimental_acd_manager", None)
        if manager is not None and library.asynchronous():
            manager.run_independently(flat[0].op)
    return result


def run(call: Call, tensors: Sequence[Any], splits: Any = None) -> Any:
    """Run a collective on tensors, as one unit if there are several; return what its op returns.

    Raises:
        TypeError, ValueError: an argument that is none; a set that is not in use, or before init; an unknown algorithm.
        PlanRefused, Unsupported: see `lwcc.choosing.native_name`.
        tf.errors.OpError: see `lwcc_tf.ops`.
    """
    eager = tf.executing_eagerly()
    refuse_graph(call.title)
    attributes: dict[str, Any] = {"process_set": set_id(call.process_set)}
    name, numbered = _unnamed(call) if call.name is None else (arguments.name(call.name), False)
    root = arguments.number(call.root, "root_rank")
    attributes.update(op=int(call.op), root=root, blocking=int(eager), numbered=int(numbered))
    if call.prescale != 1.0 or call.postscale != 1.0:
        attributes["prescale_bits"] = arguments.bits(call.prescale, "prescale_factor")
        attributes["postscale_bits"] = arguments.bits(call.postscale, "postscale_factor")
    if call.algorithm is not None:
        attributes["algorithm"] = choosing.native_name(call.algorithm, call.collective, attributes["process_set"])
    op = library.wrapper(call.collective)
    attributes["tensor_name"] = names.unique(name)
    if call.collective == core.BARRIER:
        return op(**attributes)
    if call.collective == core.ALLTOALL:
        return independent(op(tensor=tensors[0], splits=splits, **attributes))
    if call.collective == core.ALLGATHER:
        attributes["N"] = len(tensors)
    return independent(op(tensors=list(tensors), **attributes))


def number(which: int, process_set: Optional[int] = 0) -> Any:
    """Return an int32 scalar, looked up whenever the op runs."""
    chosen = 0 if process_set is None else arguments.number(process_set, "process_set_id")
    return independent(library.load().lwcc_number(tensor_name="number", op=which, process_set=chosen))
