"""Gradients of a step, reduced over the ranks: what tape and optimizer share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lwcc.ops import Op
from lwcc_tf import engine, ops
from lwcc_tf.compression import Compression
from lwcc_tf.options import Options, key


def _title(variable: Any) -> str:
    """Return a name that is the same on every rank: without the numbers that a process counts."""
    return re.sub(r"[_:]\d+", "", str(getattr(variable, "name", ""))).rpartition("/")[2]


class Reducer:
    """Reduces the gradients of one optimizer or tape, always under the same names.

    Attributes:
        local: keys of variables whose gradients stay on this rank.
    """

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self.options = options.checked()
        self.local: set[int] = set()

    def reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the gradients reduced over the ranks, in order; None stays None, and all on ranks outside the set.

        Args:
            grads: tensors, tf.IndexedSlices or None; as many, in the same order and with the same kinds on every rank.
            variables: theirs.
        """
        out = list(grads)
        if not engine.takes_part(self.options.process_set):
            return out
        dense: list[int] = []
        dense_only = self.options.sparse_as_dense or self.options.op == Op.ADASUM
        for i, (grad, variable) in enumerate(zip(grads, variables)):
            if grad is None:
                continue
            if key(variable) in self.local:
                out[i] = self._scaled(grad)
            elif isinstance(grad, tf.IndexedSlices) and not dense_only:
                name = self._name(i, variable)
                kind = self.options.op
                out[i] = ops.allreduce(grad, op=kind, name=name, process_set=self.options.process_set)
            else:
                dense.append(i)
                out[i] = tf.convert_to_tensor(grad)
        for number, unit in enumerate(self._units(dense, variables)):
            # PATH 1/9: in a function each unit is an op that runs once its gradients are ready
            # a group of one has a group's name: ranks that bring different numbers have to meet to be told so
            grouped = tf.executing_eagerly() or self.options.groups
            name = f"{self.name}.group{number}" if grouped else self._name(unit[0], variables[unit[0]])
            for i, reduced in zip(unit, self._reduce_unit([out[i] for i in unit], name)):
                out[i] = reduced
        return out

    def _name(self, index: int, variable: Any) -> str:
        return f"{self.name}.{index}.{_title(variable)}"

    def _scaled(self, grad: Any) -> Any:
        if not self.options.scale_local:
            return grad
        factor = 1 / engine.members(self.options.process_set)
        if isinstance(grad, tf.IndexedSlices):
            return tf.IndexedSlices(grad.values * tf.cast(factor, grad.values.dtype), grad.indices, grad.dense_shape)
        return grad * tf.cast(factor, grad.dtype)

    def _units(self, dense: list[int], variables: Sequence[Any]) -> list[list[int]]:
        """Return the indices of gradients that travel together."""
        groups = self.options.groups
        if not dense:
            return []
        if tf.executing_eagerly():
            return [dense]  # nothing else could run meanwhile
        if not groups:
            return [[i] for i in dense]
        if isinstance(groups, int):
            count = min(groups, len(dense))
            return [dense[len(dense) * g // count : len(dense) * (g + 1) // count] for g in range(count)]
        number = {key(v): g for g, group in enumerate(groups) for v in group}
        found: dict[Any, list[int]] = {}
        for i in dense:
            found.setdefault(number.get(key(variables[i]), f"alone.{i}"), []).append(i)
        return list(found.values())

    def _reduce_unit(self, tensors: list[Any], name: str) -> list[Any]:
        o = self.options
        before, after = (1 / o.predivide, o.predivide) if o.predivide != 1.0 else (1.0, 1.0)
        return ops.grouped_allreduce(
            tensors, compression=o.compression or Compression.none, op=o.op, prescale_factor=before,
            postscale_factor=after, name=name, process_set=o.process_set, algorithm=o.algorithm,
        )  # fmt: skip
