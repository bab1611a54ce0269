"""What the optimizer and the callbacks need of a backend, for Keras over TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

import tensorflow as tf

from lwcc_tf.reduction import Reducer as Reducer
from lwcc_tf.state import broadcast_variables as broadcast_variables


class Accumulator:
    """Sums the gradients of several calls for the same variables."""

    def __init__(self, passes: int, average: bool) -> None:
        self._passes, self._average = passes, average
        self._sums: list[Any] = []
        self._given: list[Any] = []  # variables: whether there has been a gradient
        self._traced: set[int] = set()  # where one was known of when some function was traced, or in an eager call
        self._calls: Optional[tf.Variable] = None

    def run(self, grads: Sequence[Any], variables: Sequence[Any], then: Callable[[list[Any]], None]) -> None:
        """Add gradients; with every `passes`-th call hand the sums, or means, to `then`."""
        dense = [None if grad is None else tf.convert_to_tensor(grad) for grad in grads]
        with tf.init_scope():
            if self._calls is None:
                self._calls = tf.Variable(0, dtype=tf.int64, trainable=False)
                types = [v.dtype if g is None else g.dtype for v, g in zip(variables, dense)]
                zeros = [tf.zeros(v.shape, dtype) for v, dtype in zip(variables, types)]
                self._sums = [tf.Variable(zero, trainable=False) for zero in zeros]
                self._given = [tf.Variable(False, trainable=False) for _ in zeros]
        for i, grad in enumerate(dense):
            if grad is not None:
                self._sums[i].assign_add(tf.cast(grad, self._sums[i].dtype))
                self._given[i].assign(True)
                self._traced.add(i)
        self._calls.assign_add(1)
        tf.cond(self._calls % self._passes == 0, lambda: self._finish(then), lambda: None)

    def _finish(self, then: Callable[[list[Any]], None]) -> None:
        known = set(self._traced)
        others = [given for i, given in enumerate(self._given) if i not in known]
        if not others:
            self._step(known, then)
            return
        # gradients that functions to be traced later will have first
        everything = set(range(len(self._sums)))
        tf.cond(tf.reduce_any(tf.stack(others)), lambda: self._step(everything, then), lambda: self._step(known, then))

    def _step(self, which: set[int], then: Callable[[list[Any]], None]) -> None:
        factor = 1 / self._passes if self._average else 1
        sums = [total if i in which else None for i, total in enumerate(self._sums)]
        then([None if total is None else total * tf.cast(factor, total.dtype) for total in sums])
        for total in sums:
            if total is not None:
                total.assign(tf.zeros_like(total))


def snapshot(variable: Any) -> Any:
    """Return what a variable holds now, as a tensor that later changes leave alone."""
    return tf.identity(tf.convert_to_tensor(variable))
