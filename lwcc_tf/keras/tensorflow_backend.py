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
        self._sums: list[Optional[tf.Variable]] = []
        self._calls: Optional[tf.Variable] = None

    def run(self, grads: Sequence[Any], variables: Sequence[Any], then: Callable[[list[Any]], None]) -> None:
        """Add gradients; with every `passes`-th call hand the sums, or means, to `then`."""
        dense = [None if grad is None else tf.convert_to_tensor(grad) for grad in grads]
        with tf.init_scope():
            if self._calls is None:
                self._calls = tf.Variable(0, dtype=tf.int64, trainable=False)
                self._sums = [None] * len(dense)
            for i, (grad, variable) in enumerate(zip(dense, variables)):
                if grad is not None and self._sums[i] is None:  # a gradient may be missing at first
                    self._sums[i] = tf.Variable(tf.zeros(variable.shape, grad.dtype), trainable=False)
        for total, grad in zip(self._sums, dense):
            if total is not None and grad is not None:
                total.assign_add(grad)
        self._calls.assign_add(1)
        tf.cond(self._calls % self._passes == 0, lambda: self._finish(then), lambda: None)

    def _finish(self, then: Callable[[list[Any]], None]) -> None:
        factor = 1 / self._passes if self._average else 1
        then([None if total is None else total * tf.cast(factor, total.dtype) for total in self._sums])
        for total in self._sums:
            if total is not None:
                total.assign(tf.zeros_like(total))


def snapshot(variable: Any) -> Any:
    """Return what a variable holds now, as a tensor that later changes leave alone."""
    return tf.identity(tf.convert_to_tensor(variable))
