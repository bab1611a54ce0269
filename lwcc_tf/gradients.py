"""Gradients of the ops.

The conventions are Horovod's: a rank's loss is one term of the mean over the ranks, so what an allgather or a
broadcast hands to everybody gets the *average* of the gradients, and an allreduce passes its own reduction back.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lwcc import ops as core
from lwcc.ops import Op
from lwcc_tf import engine, library, names


def _factor(op: Any, name: str) -> float:
    (value,) = struct.unpack("<d", struct.pack("<q", op.get_attr(name)))
    return float(value)


def _back(forward: Any, collective: int, tensors: Sequence[Any], **attributes: Any) -> Any:
    """Run the collective that carries gradients back, under a name made from that of the op."""
    eager = tf.executing_eagerly()
    engine.refuse_graph("the gradient of a collective")
    name = forward.get_attr("tensor_name")
    name = f"{name.decode() if isinstance(name, bytes) else name}.grad"
    common = {
        "tensor_name": names.unique(name), "process_set": forward.get_attr("process_set"), "blocking": int(eager),
        "numbered": forward.get_attr("numbered") if eager else 0,
    }  # fmt: skip
    made = library.wrapper(collective)
    if collective == core.ALLTOALL:
        return engine.independent(made(tensor=tensors[0], **common, **attributes))
    return engine.independent(made(tensors=list(tensors), **common, **attributes))


def _filled(op: Any, grads: Sequence[Any]) -> list[Any]:
    """Put zeros where an output had no part in the loss: every rank has to take part in what goes back."""
    return [tf.zeros_like(out) if grad is None else tf.convert_to_tensor(grad) for out, grad in zip(op.outputs, grads)]


def _average(op: Any, grads: Sequence[Any]) -> list[Any]:
    return list(_back(op, core.ALLREDUCE, grads, op=int(Op.AVERAGE)))


@tf.RegisterGradient("LwccAllreduce")
def _allreduce(op: Any, *grads: Any) -> list[Any]:
    kind = Op(op.get_attr("op"))
    if kind not in (Op.AVERAGE, Op.SUM):
        raise NotImplementedError(f"lwcc: allreduce with op={kind.name.title()} has no gradient; use Average or Sum")
    same = {key: op.get_attr(key) for key in ("prescale_bits", "postscale_bits", "algorithm")}
    return list(_back(op, core.ALLREDUCE, _filled(op, grads), op=int(kind), **same))


@tf.RegisterGradient("LwccBroadcast")
def _broadcast(op: Any, *grads: Any) -> list[Any]:
    is_root = tf.equal(engine.number(library.RANK), op.get_attr("root"))
    averaged = _average(op, _filled(op, grads))
    return [tf.where(is_root, grad, tf.zeros_like(grad)) for grad in averaged]


@tf.RegisterGradient("LwccAllgather")
def _allgather(op: Any, *grads: Any) -> list[Any]:
    count = len(op.inputs)
    averaged = _average(op, _filled(op, grads[:count]))
    me = engine.number(library.RANK, op.get_attr("process_set"))
    found = []
    for grad, rows, given in zip(averaged, op.outputs[count:], op.inputs):
        begin = tf.reduce_sum(rows[:me])
        mine = grad[begin : begin + rows[me]]
        if given.shape.rank is None:  # it may have been a scalar, which is gathered as a row
            mine = tf.reshape(mine, tf.shape(given))
        found.append(tf.ensure_shape(mine, given.shape))
    return found


@tf.RegisterGradient("LwccReducescatter")
def _reducescatter(op: Any, *grads: Any) -> list[Any]:
    factor = _factor(op, "prescale_bits") * _factor(op, "postscale_bits")
    filled = _filled(op, grads)
    if op.get_attr("op") == Op.SUM:
        ranks = engine.number(library.SIZE, op.get_attr("process_set"))
        filled = [grad * tf.cast(ranks, grad.dtype) for grad in filled]
    scaled = [grad * tf.cast(factor, grad.dtype) for grad in filled] if factor != 1 else filled
    gathered = _back(op, core.ALLGATHER, scaled, N=len(scaled)).outputs
    return [tf.ensure_shape(grad, given.shape) for grad, given in zip(gathered, op.inputs)]


@tf.RegisterGradient("LwccAlltoall")
def _alltoall(op: Any, grad: Any, _: Any) -> list[Any]:
    (filled,) = _filled(op, [grad])
    back = _back(op, core.ALLTOALL, [filled], splits=op.outputs[1]).output
    return [tf.ensure_shape(back, op.inputs[0].shape), None]
