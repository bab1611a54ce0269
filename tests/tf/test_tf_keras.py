"""The Keras wrapper with tf_keras, as `TF_USE_LEGACY_KERAS=1` asks for, against one process on the whole batch."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

for package in ("tensorflow", "tf_keras"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)

TRAINING = """
import sys, warnings
from pathlib import Path
import numpy as np, tensorflow as tf
import lwcc_tf as lwcc, lwcc_tf.keras as hvd
keras = tf.keras
assert keras.__name__.startswith("tf_keras")
hvd.init()
rank, size = hvd.rank(), hvd.size()

def net(seed):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])

def same_everywhere(tensors):
    bits = [np.asarray(v).tobytes() for v in tensors]
    assert all(theirs == bits for theirs in hvd.allgather_object(bits))

random = np.random.default_rng(0)
x, y = random.normal(size=(48, 6)).astype("float32"), random.normal(size=(48, 1)).astype("float32")
order = np.arange(48).reshape(4, size, -1)[:, rank].ravel()
kinds = keras.optimizers
makers = [
    lambda: kinds.SGD(0.05, momentum=0.9), lambda: kinds.legacy.SGD(0.05, momentum=0.9), lambda: kinds.Adam(0.01)
]
for make in makers:
    for passes in (1, 2):
        alone, model = net(1), net(1 + rank)
        alone.compile(make(), "mse")
        alone.fit(x, y, batch_size=12 * passes, epochs=2, shuffle=False, verbose=0)
        optimizer = hvd.DistributedOptimizer(make(), backward_passes_per_step=passes, average_aggregated_gradients=True)
        model.compile(optimizer, "mse", metrics=["mae"], jit_compile=True)
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
        rest = dict(batch_size=12 // size, epochs=2, shuffle=False, verbose=0)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            history = model.fit(x[order], y[order], callbacks=callbacks, **rest).history
        first = make is makers[0] and passes == 1 and rank == 0
        assert sum("without XLA" in str(w.message) for w in seen) == first
        for a, b in zip(alone.variables, model.variables):
            assert np.allclose(a, b, atol=2e-5), a.name
        same_everywhere(model.variables)
        assert len(set(hvd.allgather_object(str(history)))) == 1

rates = []
see = lambda batch, logs: rates.append(float(model.optimizer.learning_rate))
note = keras.callbacks.LambdaCallback(on_batch_begin=see)
warmup = hvd.callbacks.LearningRateWarmupCallback(0.08, warmup_epochs=2)
best = hvd.callbacks.BestModelCheckpoint("loss", filepath=f"best{rank}.keras")
model.fit(x[order], y[order], callbacks=[warmup, hvd.callbacks.MetricAverageCallback(), best, note], **rest)
rise = [0.08 * (1 + step / 8 * (size - 1)) / size for step in range(8)]
assert np.allclose(rates, rise), (rates, rise)
assert Path(f"best{rank}.keras").exists() == (rank == 0)

for name in ("model.keras", "model.h5"):
    model = net(1)
    model.compile(hvd.DistributedOptimizer(kinds.Adam(0.01)), "mse")
    model.fit(x[order], y[order], **rest)
    path = f"{rank}.{name}"
    model.save(path)
    plain, again = keras.models.load_model(path), hvd.load_model(path)
    assert type(plain.optimizer) is kinds.Adam and type(again.optimizer).__name__ == "Adam", name
    steps = int(model.optimizer.iterations)
    for trained in (again, model):
        trained.fit(x[order], y[order], **{**rest, "epochs": 1})
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(model.variables, again.variables)), name
    assert int(model.optimizer.iterations) == int(again.optimizer.iterations) > steps, name

for make in makers[1:]:  # one rank has loaded what it goes on with
    model = net(1 + rank)
    model.compile(make(), "mse")
    if rank == 0:
        model.fit(x[order], y[order], **rest)
    steps = hvd.broadcast_object(int(model.optimizer.iterations), 0)
    model.compile(hvd.DistributedOptimizer(model.optimizer), "mse")
    begin = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(x[order], y[order], callbacks=begin, **{**rest, "epochs": 1})
    kept = model.optimizer.variables
    same_everywhere([*model.variables, *(kept() if callable(kept) else kept)])
    assert int(model.optimizer.iterations) == steps + 4 > 4, steps

for steps in (1, 2):  # without an Input the variables come with the first batch
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(kinds.Adam(0.01)), "mse", steps_per_execution=steps)
    model.fit(x[order], y[order], callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)], **rest)
    same_everywhere([*model.variables, *model.optimizer.variables])

keras.mixed_precision.set_global_policy("mixed_float16")
for make in makers:
    model = net(1)
    model.compile(hvd.DistributedOptimizer(make()), "mse")
    model.fit(x[order], y[order], **rest)
    before = [v.numpy() for v in model.trainable_variables]
    model.fit(np.full_like(x[:6], np.inf if rank == 0 else 1.0), y[:6], batch_size=6, verbose=0)
    assert all((v.numpy() == old).all() for v, old in zip(model.trainable_variables, before))
    same_everywhere(model.variables)
keras.mixed_precision.set_global_policy("float32")

whole, parts = keras.layers.BatchNormalization(), lwcc.SyncBatchNormalization()
wanted, got = whole(tf.constant(x), training=True), parts(tf.constant(x[order]), training=True)
assert np.allclose(wanted.numpy()[order], got, atol=1e-4)
assert np.allclose(whole.moving_variance, parts.moving_variance, rtol=0.03)
assert "keras.src" not in sys.modules
print("held: tf_keras", flush=True)
"""


def test_tf_keras_matches_one_process(run_ranks: Any) -> None:
    env = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = run_ranks(2, TRAINING, prelude=False, env=env, timeout=200)
    assert done.out.count("held: tf_keras") == 2, done.tail()
