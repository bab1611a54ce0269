"""SyncBatchNormalization: batch normalization with the statistics of the batches of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import tensorflow as tf

from lwcc import context
from lwcc.ops import Op
from lwcc_tf import ops
from lwcc_tf.keras import backend

if TYPE_CHECKING:
    import keras

    from lwcc.process_sets import ProcessSet
else:
    keras = backend.keras_module()


@keras.saving.register_keras_serializable(package="lwcc_tf")
class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc, unused-ignore]
    """Keras's BatchNormalization (backend tensorflow), whose training statistics are those of all ranks together.

    Ranks may bring different numbers of rows; each element counts once. Arguments are those of the base class (without
    `renorm`) and `process_set`, the ranks that take part.
    """

    def __init__(self, *args: Any, process_set: Optional[ProcessSet] = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if getattr(self, "renorm", False):
            raise ValueError("lwcc: SyncBatchNormalization has no renorm")
        self._process_set = process_set

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Normalize `inputs`, a tensor of floats; `mask`, one dimension less, chooses the rows that count."""
        if not training or not self.trainable or not context.is_initialized():
            return super().call(inputs, training=training, mask=mask)
        x = tf.cast(inputs, tf.float64 if inputs.dtype == tf.float64 else tf.float32)
        mean, variance = self._statistics(x, mask)
        shape = [1] * len(x.shape)
        axis = self._channels(x)
        shape[axis] = x.shape[axis]
        for moving, new in ((self.moving_mean, mean), (self.moving_variance, variance)):
            old = tf.cast(tf.convert_to_tensor(moving), x.dtype)
            moving.assign(old * self.momentum + new * (1.0 - self.momentum))
        gamma = tf.reshape(tf.cast(tf.convert_to_tensor(self.gamma), x.dtype), shape) if self.scale else 1.0
        beta = tf.reshape(tf.cast(tf.convert_to_tensor(self.beta), x.dtype), shape) if self.center else 0.0
        inverse = tf.math.rsqrt(tf.reshape(variance, shape) + self.epsilon) * gamma
        return tf.cast((x - tf.reshape(mean, shape)) * inverse + beta, self.compute_dtype)

    def _channels(self, x: Any) -> int:
        axis = self.axis[0] if isinstance(self.axis, (list, tuple)) else self.axis  # a list in tf_keras
        return int(axis) % len(x.shape)

    def _statistics(self, x: Any, mask: Any) -> tuple[Any, Any]:
        """Return mean and variance over all elements of all ranks, of shape [channels]."""
        axis = self._channels(x)
        others = [i for i in range(len(x.shape)) if i != axis]
        weight = tf.ones_like(x) if mask is None else tf.ones_like(x) * tf.cast(mask, x.dtype)[..., None]
        sums = [tf.reduce_sum(x * weight, others), tf.reduce_sum(weight, others)]
        total, count = tf.unstack(ops.allreduce(tf.stack(sums), op=Op.SUM, process_set=self._process_set))
        mean = tf.math.divide_no_nan(total, count)
        shape = [1] * len(x.shape)
        shape[axis] = x.shape[axis]
        # a second pass over the deviations: the square of a large mean would swallow a small variance
        squares = tf.reduce_sum(tf.square(x - tf.reshape(mean, shape)) * weight, others)
        spread = ops.allreduce(squares, op=Op.SUM, process_set=self._process_set)
        return mean, tf.math.divide_no_nan(spread, count)
