"""The Keras wrapper over PyTorch: one short training, without TensorFlow in the process."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

for package in ("keras", "torch"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)

TRAINING = """
import sys
import keras, numpy as np, torch
keras_alone = set(sys.modules)
import lwcc_tf.keras as hvd
torch.set_num_threads(1)
hvd.init()
hvd.DistributedOptimizer(keras.optimizers.SGD()), hvd.callbacks
assert not {name for name in set(sys.modules) - keras_alone if name.startswith("tensorflow")}
rank, size = hvd.rank(), hvd.size()

def net(seed):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])

random = np.random.default_rng(0)
x, y = random.normal(size=(48, 6)).astype("float32"), random.normal(size=(48, 1)).astype("float32")
order = np.arange(48).reshape(4, size, -1)[:, rank].ravel()
for passes in (1, 2):
    alone, model = net(1), net(1 + rank)
    alone.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    alone.fit(x, y, batch_size=12 * passes, epochs=2, shuffle=False, verbose=0)
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.05, momentum=0.9), backward_passes_per_step=passes, average_aggregated_gradients=True
    )
    model.compile(optimizer, "mse", metrics=["mae"])
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    model.fit(x[order], y[order], batch_size=12 // size, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
    for a, b in zip(alone.variables, model.variables):
        assert np.allclose(keras.ops.convert_to_numpy(a), keras.ops.convert_to_numpy(b), atol=2e-5), a.path
    bits = [keras.ops.convert_to_numpy(v).tobytes() for v in model.variables]
    assert all(theirs == bits for theirs in hvd.allgather_object(bits))
one, other = keras.Variable([1.0, 1.0]), keras.Variable([2.0, 2.0])
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
optimizer.build([one, other])
for value in (1.0, 10.0):  # calls for different variables count apart
    for variable, factor in ((one, value), (other, 2 * value)):
        optimizer.apply([torch.full([2], factor)], [variable])
found = [keras.ops.convert_to_numpy(v).tolist() for v in (one, other)]
assert found == [[-10.0] * 2, [-20.0] * 2], found
model = net(1 + rank)
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), op=hvd.Adasum), "mse")
equal = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
losses = model.fit(x[order], y[order], batch_size=12 // size, epochs=3, verbose=0, callbacks=[equal]).history["loss"]
bits = [keras.ops.convert_to_numpy(v).tobytes() for v in model.variables]
assert all(theirs == bits for theirs in hvd.allgather_object(bits)) and losses[-1] < losses[0], losses
print("held: torch backend", flush=True)
"""


def test_keras_over_torch_matches_one_process(run_ranks: Any) -> None:
    done = run_ranks(2, TRAINING, prelude=False, env={"KERAS_BACKEND": "torch"}, timeout=120)
    assert done.out.count("held: torch backend") == 2, done.tail()
