"""The collectives on tensors, under Horovod's names, keywords and defaults; eager, in graphs and in tf.function.

Keywords that they share:

    name            matches the call with those of the other ranks, in any order; without one, eager calls of a kind
                    pair up in program order, and those in a function by their place in it.
                    A rank has one call of a name under way: threads that make calls of one name, or call one function,
                    have to take turns, in an order that the ranks share.
    process_set     the ranks that take part; None: all.
    algorithm       an `@lwcc.algorithm`, "file.py:name", or a built-in name; None: see `lwcc.use`. A function keeps
                    what it was traced with, and an allreduce's gradient takes it too.
    device_dense, device_sparse, ignore_name_scope   accepted for compatibility; they change nothing.

Tensors are any that TensorFlow has but strings, variants and resources; what `tf.convert_to_tensor` takes is a tensor
too. All carry gradients. In a function a call runs once every input is there, side by side with the others.

Wrong Python arguments are a ValueError or TypeError, an algorithm that fails its proof is `PlanRefused`. The rest is a
`tf.errors.OpError`: InvalidArgumentError for an argument that no collective can take (nothing was submitted then),
FailedPreconditionError where the ranks disagree or outside a job, AbortedError where a rank died, DeadlineExceededError
where a rank is missing for too long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
import tensorflow as tf

import lwcc
from lwcc import ops as core
from lwcc.ops import Op
from lwcc_tf import arguments, engine, gradients, library
from lwcc_tf.compression import Compression, Compressor
from lwcc_tf.engine import Call

if TYPE_CHECKING:
    from lwcc.authoring import Choice
    from lwcc.process_sets import ProcessSet

assert gradients is not None  # imported for what it registers


def _tensor(value: Any, title: str) -> Any:
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)) or value is None:
        kind = "None" if value is None else f"a tf.{type(value).__name__}"
        raise ValueError(
            f"lwcc: {title} takes dense tensors (allreduce also tf.IndexedSlices), not {kind}; of a RaggedTensor send "
            "flat_values and row_lengths(), of a SparseTensor its parts, with allgather"
        )
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype in (tf.string, tf.variant, tf.resource):
        raise ValueError(
            f"lwcc: {title} takes tensors of numbers or bool, not of dtype {tensor.dtype.name}; for Python objects "
            "there are broadcast_object and allgather_object"
        )
    return tensor


def _tensors(values: Sequence[Any], title: str) -> list[Any]:
    return [_tensor(value, title) for value in values]


def _reduced(call: Call, tensors: Sequence[Any], compression: type[Compressor]) -> list[Any]:
    """Run reductions; what is compressed is summed and scaled by the core in 32 bits, and narrow on its way only."""
    given = _tensors(tensors, call.title)
    if call.op in (Op.MIN, Op.MAX, Op.PRODUCT) and any(tensor.dtype.is_complex for tensor in given):
        raise ValueError(f"lwcc: {call.title} with op={call.op.name.title()} has no meaning for complex numbers")
    if not hasattr(compression, "compress"):
        raise TypeError(f"lwcc: compression={compression!r}: give Compression.none, fp16, bf16 or a Compressor")
    if call.op == Op.AVERAGE and any(tensor.dtype == tf.bool for tensor in given):
        raise ValueError(f"lwcc: {call.title} with op=Average has no meaning for bool; use Sum (or), Min (and)")
    packed = [compression.compress(tensor) for tensor in given]
    done = engine.run(call, [tensor for tensor, _ in packed])
    return [compression.decompress(tensor, packed[i][1]) for i, tensor in enumerate(done)]


def _slices(call: Call, value: tf.IndexedSlices) -> tf.IndexedSlices:
    """Gather the rows of all ranks; where an index comes twice, its rows add up."""
    if call.algorithm is not None:
        raise ValueError("lwcc: tf.IndexedSlices are gathered, so they take no algorithm= of an allreduce")
    if call.op not in (Op.AVERAGE, Op.SUM) or call.prescale != 1.0 or call.postscale != 1.0:
        raise ValueError(
            "lwcc: tf.IndexedSlices are gathered, so they take op=Average or Sum and no scale factors; pass "
            "tf.convert_to_tensor(value) for the rest"
        )
    gather = Call(core.ALLGATHER, call.name, process_set=call.process_set)
    # a rank that has joined brings nothing, so that the ones count those that take part
    values, indices, ones = engine.run(gather, [value.values, value.indices, tf.ones([1], tf.int32)]).outputs
    if call.op == Op.AVERAGE:
        values = values / tf.cast(tf.size(ones), values.dtype)
    return tf.IndexedSlices(values, indices, value.dense_shape)


def allreduce(
    tensor: Any, average: Optional[bool] = None, device_dense: str = "", device_sparse: str = "",
    compression: type[Compressor] = Compression.none, op: Optional[int] = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, name: Optional[str] = None, process_set: Optional[ProcessSet] = None,
    ignore_name_scope: bool = False, *, algorithm: Optional[Choice] = None,
) -> Any:  # fmt: skip
    """Reduce `tensor` over the ranks (default: average); return a tensor of its shape and type.

    Args:
        tensor: same shape and type on every rank; or tf.IndexedSlices, whose rows are gathered (Average and Sum).
        average: deprecated, see `op`.
        device_dense: see the module's text; so for `device_sparse`, `name`, `process_set` and `ignore_name_scope`.
        device_sparse: as `device_dense`.
        compression: how the data travels, `Compression.fp16` for example.
        op: Average (default), Sum, Min, Max or Product.
        prescale_factor: multiplies each rank's input; floating types only.
        postscale_factor: multiplies the result; floating types only.
        name: as `device_dense`.
        process_set: as `device_dense`.
        ignore_name_scope: as `device_dense`.
        algorithm: as `device_dense`; not for tf.IndexedSlices.
    """
    kind = engine.reduction(average, op)
    call = Call(core.ALLREDUCE, name, kind, 0, prescale_factor, postscale_factor, process_set, algorithm)
    if isinstance(tensor, tf.IndexedSlices):
        return _slices(call, tensor)
    return _reduced(call, [tensor], compression)[0]


def grouped_allreduce(
    tensors: Sequence[Any], average: Optional[bool] = None, device_dense: str = "", device_sparse: str = "",
    compression: type[Compressor] = Compression.none, op: Optional[int] = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, name: Optional[str] = None, process_set: Optional[ProcessSet] = None,
    ignore_name_scope: bool = False, *, algorithm: Optional[Choice] = None,
) -> list[Any]:  # fmt: skip
    """Reduce several dense tensors as one unit; return tensors, in order."""
    if len(tensors) == 0:
        return []
    kind = engine.reduction(average, op)
    call = Call(core.ALLREDUCE, name, kind, 0, prescale_factor, postscale_factor, process_set, algorithm)
    return _reduced(call, tensors, compression)


def allgather(
    tensor: Any, name: Optional[str] = None, ignore_name_scope: bool = False,
    process_set: Optional[ProcessSet] = None, *, algorithm: Optional[Choice] = None,
) -> Any:  # fmt: skip
    """Concatenate the ranks' tensors along dimension 0, in rank order; first dimensions may differ, also be 0."""
    return grouped_allgather([tensor], name, ignore_name_scope, process_set, algorithm=algorithm)[0]


def grouped_allgather(
    tensors: Sequence[Any], name: Optional[str] = None, ignore_name_scope: bool = False,
    process_set: Optional[ProcessSet] = None, *, algorithm: Optional[Choice] = None,
) -> list[Any]:  # fmt: skip
    """`allgather` several tensors as one unit."""
    if len(tensors) == 0:
        return []
    rows = [tf.reshape(tensor, [1]) if tensor.shape.rank == 0 else tensor for tensor in _tensors(tensors, "allgather")]
    call = Call(core.ALLGATHER, name, process_set=process_set, algorithm=algorithm)
    return list(engine.run(call, rows).outputs)


def broadcast(
    tensor: Any, root_rank: int, name: Optional[str] = None, ignore_name_scope: bool = False,
    process_set: Optional[ProcessSet] = None, *, algorithm: Optional[Choice] = None,
) -> Any:  # fmt: skip
    """Return the tensor of `root_rank`, a global rank also within a process set."""
    call = Call(core.BROADCAST, name, root=root_rank, process_set=process_set, algorithm=algorithm)
    return engine.run(call, _tensors([tensor], "broadcast"))[0]


def broadcast_(
    variables: Sequence[Any], root_rank: int, name: Optional[str] = None, process_set: Optional[ProcessSet] = None
) -> list[Any]:
    """Overwrite variables (of TensorFlow or Keras) with those of `root_rank`, as one unit; return them.

    In a graph of TensorFlow 1 what is returned does it when a session runs it.
    Between ranks that share memory a variable's own memory is read, and one copy is made into the others'.
    """
    found = list(variables)
    if not found:
        return found
    call = Call(core.BROADCAST, name, root=root_rank, process_set=process_set)
    done = [v.assign(value) for v, value in zip(found, engine.run(call, _tensors(found, "broadcast")))]
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    return found if graph is None or graph.building_function else done


def alltoall(
    tensor: Any, splits: Any = None, name: Optional[str] = None, ignore_name_scope: bool = False,
    process_set: Optional[ProcessSet] = None, *, algorithm: Optional[Choice] = None,
) -> Any:  # fmt: skip
    """Send rows of `tensor` to each rank; return the rows received, in rank order.

    Args:
        tensor: at least one dimension.
        splits: rows for each rank, their sum is the first dimension. None: equal parts.
        name: see the module's text; so for `ignore_name_scope`, `process_set` and `algorithm`.
        ignore_name_scope: as `name`.
        process_set: as `name`.
        algorithm: as `name`.

    Returns:
        The rows; with `splits` the pair (rows, received_splits), the latter an int32 tensor.
    """
    wanted = tf.zeros([0], tf.int64) if splits is None else arguments.splits(splits)
    given = _tensors([tensor], "alltoall")
    if given[0].shape.rank == 0:
        raise ValueError("lwcc: alltoall deals out rows, so it needs a tensor of at least one dimension")
    done = engine.run(Call(core.ALLTOALL, name, process_set=process_set, algorithm=algorithm), given, wanted)
    return done.output if splits is None else (done.output, tf.cast(done.rows, tf.int32))


def reducescatter(
    tensor: Any, device_dense: str = "", compression: type[Compressor] = Compression.none, op: int = Op.AVERAGE,
    name: Optional[str] = None, process_set: Optional[ProcessSet] = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, ignore_name_scope: bool = False, *, algorithm: Optional[Choice] = None,
) -> Any:  # fmt: skip
    """Reduce over the ranks and return this rank's rows; where they don't divide, the first ranks get one more."""
    return grouped_reducescatter(
        [tensor], device_dense, compression, op, name, process_set=process_set, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, algorithm=algorithm,
    )[0]  # fmt: skip


def grouped_reducescatter(
    tensors: Sequence[Any], device_dense: str = "", compression: type[Compressor] = Compression.none,
    op: int = Op.AVERAGE, name: Optional[str] = None, process_set: Optional[ProcessSet] = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, ignore_name_scope: bool = False, *,
    algorithm: Optional[Choice] = None,
) -> list[Any]:  # fmt: skip
    """`reducescatter` (Average or Sum) several tensors as one unit."""
    kind = engine.reduction(None, op)
    if kind not in (Op.AVERAGE, Op.SUM):
        raise ValueError(f"lwcc: reducescatter takes op=Average or Sum, not {kind.name.title()}")
    if len(tensors) == 0:
        return []
    given = _tensors(tensors, "reducescatter")
    if any(tensor.shape.rank == 0 for tensor in given):
        raise ValueError("lwcc: reducescatter deals out rows, so it needs tensors of at least one dimension")
    call = Call(core.REDUCESCATTER, name, kind, 0, prescale_factor, postscale_factor, process_set, algorithm)
    return _reduced(call, given, compression)


def barrier(process_set: Optional[ProcessSet] = None) -> Any:
    """Return when every rank of the set has called it.

    In a graph: return a tensor, 0, of an op that runs in order with others that have effects.
    """
    done = engine.run(Call(core.BARRIER, None, process_set=process_set), [])
    if tf.executing_eagerly():
        return None
    with tf.control_dependencies([done]):
        return tf.zeros([], tf.int32)


def join(process_set: Optional[ProcessSet] = None) -> Any:
    """Say that this rank is out of data; return, when every rank has said so, the rank that did last.

    Until then it takes part in what the others ask for with neutral elements, and Average divides by the others. In a
    function: an int32 scalar, of an op that comes after the calls before it and holds one of TensorFlow's threads.

    Raises:
        LwccError: a rank died, or left without joining; in a function: `tf.errors.OpError` with its text.
    """
    if tf.executing_eagerly():
        return lwcc.join(process_set=process_set)
    engine.refuse_graph("join")
    with tf.control_dependencies(engine.chain()):
        last = tf.numpy_function(lambda: np.int32(lwcc.join(process_set=process_set)), [], tf.int32)
    return tf.ensure_shape(last, [])


def rank_op(name: Optional[str] = None) -> Any:
    """Return this process's rank as an int32 scalar, looked up whenever the op runs; so the next ones."""
    return engine.number(library.RANK)


def size_op(process_set_id: int = 0, name: Optional[str] = None) -> Any:
    """Return the number of ranks of a process set."""
    return engine.number(library.SIZE, process_set_id)


def local_rank_op(name: Optional[str] = None) -> Any:
    """Return this rank's index on its node."""
    return engine.number(library.LOCAL_RANK)


def local_size_op(name: Optional[str] = None) -> Any:
    """Return the number of ranks on this node."""
    return engine.number(library.LOCAL_SIZE)


def process_set_included_op(process_set_id: int = 0, name: Optional[str] = None) -> Any:
    """Return 1 if this rank is a member of the process set, else 0."""
    return engine.number(library.INCLUDED, process_set_id)
