"""Tape, optimizer, callbacks and models on any number of ranks, against one process that sees the whole batch."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from casebook import raises, run, same_everywhere

import lwcc
import lwcc_tf as hvd
import lwcc_tf.keras as hvdk

# loads what was saved where LWCC cannot be imported
LOAD = """
import sys
sys.modules.update({"lwcc": None, "lwcc_tf": None})
import keras, numpy as np, tensorflow as tf
given, answer = np.load("given.npy"), np.load("answer.npy")
exported, model = tf.saved_model.load("exported"), keras.models.load_model("model.keras")
assert np.allclose(exported.serve(given), answer, atol=1e-6) and np.allclose(model(given), answer, atol=1e-6)
(saved,) = tf.saved_model.load("saved").signatures["serving_default"](tf.constant(given)).values()
assert np.allclose(saved, answer, atol=1e-6)
assert type(model.optimizer) is keras.optimizers.SGD and int(model.optimizer.iterations) == 1
assert model.optimizer.name == "mine" and model.optimizer.momentum == 0.9
"""
ROWS = 12  # of the whole batch: divides by 1, 2, 3 and 4 ranks


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1000 + step)
    return random.normal(size=(ROWS, 6)).astype(np.float32), random.integers(0, 3, ROWS)


def mine(array: np.ndarray, rank: int, size: int) -> np.ndarray:
    return array[rank * (ROWS // size) : (rank + 1) * (ROWS // size)]


def net() -> keras.Model:
    keras.utils.set_random_seed(7)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)])


entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@keras.saving.register_keras_serializable(package="tests")
class Registered(keras.optimizers.SGD):  # type: ignore[misc, unused-ignore]
    """An optimizer of the user's that Keras loads under its package's name."""


def sgd() -> Any:
    return keras.optimizers.SGD(0.05, momentum=0.9)


def train(model: keras.Model, optimizer: Any, part: Any, tape_of: Any = lambda tape: tape, eager: bool = False) -> None:
    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = entropy(y, model(x, training=True))
        grads = tape_of(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))

    optimizer.build(model.trainable_variables)
    for number in range(4):
        x, y = (tf.constant(part(array)) for array in batch(number))
        (step.python_function if eager else step)(x, y)


def close(a: keras.Model, b: keras.Model, tolerance: float = 2e-5) -> None:
    for p, q in zip(a.variables, b.variables):
        assert np.allclose(p.numpy(), q.numpy(), rtol=tolerance, atol=tolerance), (
            p.path,
            abs(p.numpy() - q.numpy()).max(),
        )


def alone(make: Any = sgd) -> keras.Model:
    model = net()
    train(model, make(), lambda array: array)
    return model


def case_tapes_match_one_process_on_the_whole_batch(rank: int, size: int) -> None:
    expected = alone()
    divided = {"gradient_predivide_factor": 3.0}
    for options in ({"algorithm": "ring"}, {"groups": 2}, divided, {"sparse_as_dense": True}):
        for eager in (False, True):
            model = net()
            wrap = lambda tape: hvd.DistributedGradientTape(tape, **options)  # noqa: B023, E731
            train(model, sgd(), lambda array: mine(array, rank, size), wrap, eager)
            close(model, expected)
            same_everywhere(model.variables)
    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        x = tf.constant(float(rank))
        tape.watch(x)
        y = x * x
    found = tape.gradient(y, {"a": [x], "b": tf.constant(0.0)}, unconnected_gradients="none")
    assert float(found["a"][0]) == size - 1.0 and found["b"] is None and float(tape.gradient(y, x)) == size - 1.0
    raises(ValueError, "distributed already", lambda: hvd.DistributedGradientTape(tape))
    raises(ValueError, "Average or Sum Max", lambda: hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Max))


def case_optimizers_match_one_process_on_the_whole_batch(rank: int, size: int) -> None:
    adam = lambda: keras.optimizers.Adam(0.01, clipnorm=0.5)  # noqa: E731
    half = {"compression": hvdk.Compression.fp16}
    ring = {"algorithm": "ring"}
    for make, options, tolerance in ((sgd, ring, 2e-5), (adam, {"groups": 1}, 2e-5), (sgd, half, 2e-3)):
        expected, model = alone(make), net()
        train(model, hvdk.DistributedOptimizer(make(), **options), lambda array: mine(array, rank, size))
        close(model, expected, tolerance)
        same_everywhere(model.variables)
    groups_of = net()
    lists = [groups_of.layers[0].trainable_variables, [groups_of.layers[1].bias]]
    train(groups_of, hvd.DistributedOptimizer(sgd(), groups=lists), lambda array: mine(array, rank, size))
    close(groups_of, alone())
    summing = net()  # the sum of the gradients, not their mean
    slow = keras.optimizers.SGD(0.05 / size, momentum=0.9)
    train(summing, lwcc.DistributedOptimizer(slow, op=hvd.Sum), lambda array: mine(array, rank, size))
    close(summing, alone())
    raises(ValueError, "distributed already", lambda: hvdk.DistributedOptimizer(hvdk.DistributedOptimizer(sgd())))
    raises(ValueError, "at least 1", lambda: hvdk.DistributedOptimizer(sgd(), backward_passes_per_step=0))
    raises(TypeError, "no optimizer of Keras", lambda: hvdk.DistributedOptimizer(object()))


def case_fit_matches_one_process_and_does_without_xla(rank: int, size: int) -> None:
    x, y = (np.concatenate(arrays) for arrays in zip(*(batch(i) for i in range(4))))
    order = np.arange(4 * ROWS).reshape(4, size, -1)[:, rank].ravel()
    expected, model = net(), net()
    expected.compile(sgd(), entropy, jit_compile=False)
    expected.fit(x, y, batch_size=ROWS, epochs=2, shuffle=False, verbose=0)
    model.compile(hvdk.DistributedOptimizer(sgd()), entropy, jit_compile=True)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model.fit(x[order], y[order], batch_size=ROWS // size, epochs=2, shuffle=False, verbose=0)
    close(model, expected)
    same_everywhere([*model.variables, *model.optimizer.variables])
    about = [w for w in seen if "without XLA" in str(w.message)]
    assert len(about) == (rank == 0) and not model.jit_compile


def case_ranks_skip_the_same_steps_when_a_loss_overflows(rank: int, size: int) -> None:
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        model = net()
    finally:
        keras.mixed_precision.set_dtype_policy("float32")
    model.compile(hvdk.DistributedOptimizer(sgd()), entropy, jit_compile=False)
    x, y = (mine(array, rank, size) for array in batch(0))
    model.fit(x, y, verbose=0)
    before = [v.numpy() for v in model.trainable_variables]
    scale = float(model.optimizer.dynamic_scale)
    model.fit(np.full_like(x, np.inf if rank == 0 else 1.0), y, verbose=0)
    assert all((v.numpy() == old).all() for v, old in zip(model.trainable_variables, before))
    assert float(model.optimizer.dynamic_scale) == scale / 2
    model.fit(x, y, verbose=0)
    assert any((v.numpy() != old).any() for v, old in zip(model.trainable_variables, before))
    same_everywhere([*model.variables, *model.optimizer.variables])


def case_passes_are_accumulated_before_a_step(rank: int, size: int) -> None:
    for eager in (False, True):
        model, expected = net(), net()
        options = {"backward_passes_per_step": 2, "average_aggregated_gradients": True}
        optimizer = hvdk.DistributedOptimizer(keras.optimizers.SGD(0.1), **options)
        train(model, optimizer, lambda array: mine(array, rank, size), eager=eager)
        assert int(optimizer.iterations) == 2
        plain = keras.optimizers.SGD(0.1)
        for first in (0, 2):
            with tf.GradientTape() as tape:
                losses = [entropy(y, expected(x)) for x, y in (batch(first), batch(first + 1))]
                loss = tf.add_n(losses) / 2
            plain.apply_gradients(zip(tape.gradient(loss, expected.trainable_variables), expected.trainable_variables))
        close(model, expected)


def case_passes_for_different_variables_or_with_gradients_missing_lose_nothing(rank: int, size: int) -> None:
    for eager in (True, False):
        pair, lone = [tf.Variable(1.0), tf.Variable([2.0, 2.0])], tf.Variable([3.0, 3.0])
        optimizer = hvdk.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
        optimizer.build([*pair, lone])

        def step(*grads: Any, variables: Any = pair, optimizer: Any = optimizer, eager: bool = eager) -> None:
            body = lambda: optimizer.apply(list(grads), variables)  # noqa: E731
            (body if eager else tf.function(body))()

        def held(*variables: Any) -> list[Any]:
            return [variable.numpy().tolist() for variable in variables]

        ones = tf.ones([2])
        step(tf.constant(1.0), None)
        step(10.0 * ones, variables=[lone])
        assert held(*pair, lone) == [1.0, [2.0, 2.0], [3.0, 3.0]]
        step(tf.constant(2.0), 5.0 * ones)
        assert held(*pair, lone) == [-2.0, [-3.0, -3.0], [3.0, 3.0]]
        step(20.0 * ones, variables=[lone])
        assert held(*pair, lone) == [-2.0, [-3.0, -3.0], [-27.0, -27.0]]


def case_sparse_gradients_train_embeddings(rank: int, size: int) -> None:
    words = np.arange(ROWS * 2).reshape(ROWS, 2) % 7
    for options in ({}, {"sparse_as_dense": True}, {"op": hvd.Sum}):
        tables = []
        for part, wrap in ((words, None), (mine(words, rank, size), hvdk.DistributedOptimizer)):
            layer = keras.layers.Embedding(7, 3, embeddings_initializer="ones")
            layer.build((None, 2))
            rate = 0.1 / size if wrap and options.get("op") == hvd.Sum else 0.1
            optimizer = keras.optimizers.SGD(rate)
            optimizer = wrap(optimizer, **options) if wrap else optimizer
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(layer(part)))
            optimizer.apply_gradients(zip(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables))
            tables.append(layer.embeddings.numpy())
        assert np.allclose(*tables), options


def case_local_layers_keep_their_gradients(rank: int, size: int) -> None:
    x = tf.fill([1], float(rank + 1))
    mean = (size + 1) / 2
    for scale in (True, False):
        layers = [keras.layers.Dense(1, kernel_initializer="ones", use_bias=False) for _ in range(2)]
        for layer in layers:
            layer.build((None, 1))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layers[0](x[None]) + layers[1](x[None]))
        tape = hvd.PartialDistributedGradientTape(tape, local_layers=layers[:1], scale_local_gradients=scale)
        kernels = [layer.kernel for layer in layers]
        grads = tape.gradient(loss, kernels)
        local = (rank + 1) / (size if scale else 1)
        assert np.allclose([float(grads[0][0, 0]), float(grads[1][0, 0])], [local, mean])
        assert [len(part) for part in tape.get_local_and_global_gradients(grads, kernels)] == [1, 1]
        optimizer = hvdk.PartialDistributedOptimizer(
            keras.optimizers.SGD(1.0), local_layers=layers[0], scale_local_gradients=scale
        )
        optimizer.apply_gradients([(tf.fill([1, 1], float(rank + 1)), kernel) for kernel in kernels])
        assert np.allclose([float(kernel[0, 0]) for kernel in kernels], [1 - local, 1 - mean])
    raises(ValueError, "Keras layers", lambda: hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[3]))


def case_batch_statistics_are_those_of_all_ranks(rank: int, size: int) -> None:
    x, _ = batch(0)
    whole, parts = keras.layers.BatchNormalization(), hvd.SyncBatchNormalization()
    results = []
    for layer, part in ((whole, x), (parts, mine(x, rank, size))):
        layer.build((None, 6))
        with tf.GradientTape() as tape:
            given = tf.Variable(part + 100.0)
            out = layer(given, training=True)
            loss = tf.reduce_mean(out**3 * tf.range(6.0))
        wrapped = tape if layer is whole else hvd.DistributedGradientTape(tape)
        results.append([out, *wrapped.gradient(loss, layer.trainable_variables), *layer.non_trainable_variables])
    assert np.allclose(mine(results[0][0].numpy(), rank, size), results[1][0].numpy(), atol=1e-3)
    for a, b in zip(results[0][1:], results[1][1:]):
        assert np.allclose(keras.ops.convert_to_numpy(a), keras.ops.convert_to_numpy(b), rtol=2e-3, atol=1e-3)
    assert hvd.SyncBatchNormalization.from_config(parts.get_config()).epsilon == parts.epsilon


def case_callbacks_make_ranks_equal_and_set_the_rate(rank: int, size: int) -> None:
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile(
        hvdk.DistributedOptimizer(keras.optimizers.Adam(0.01)), entropy, metrics=["accuracy"], jit_compile=False
    )
    x, y = (mine(array, rank, size) for array in batch(rank))
    rates: list[float] = []

    class Note(keras.callbacks.Callback):
        def on_train_batch_begin(self, step: int, logs: Any = None) -> None:
            rates.append(float(self.model.optimizer.learning_rate))

    with tempfile.TemporaryDirectory() as folder:
        best = Path(folder) / "best.keras"
        history = model.fit(
            x, y, batch_size=ROWS // size // 2, epochs=4, verbose=0,
            callbacks=[
                hvdk.callbacks.BroadcastGlobalVariablesCallback(size - 1), hvdk.callbacks.MetricAverageCallback(),
                hvdk.callbacks.LearningRateWarmupCallback(0.08, warmup_epochs=2, verbose=1),
                hvdk.callbacks.LearningRateScheduleCallback(0.08, lambda epoch: 0.5**epoch, start_epoch=2),
                hvdk.callbacks.BestModelCheckpoint("loss", filepath=str(best)), Note(),
            ],
        ).history  # fmt: skip
        assert best.exists() == (rank == 0)
    same_everywhere([*model.variables, *model.optimizer.variables])
    assert len(set(hvd.allgather_object(str(history)))) == 1
    rise = [0.08 * (1 + step / 4 * (size - 1)) / size for step in range(4)]
    assert np.allclose(rates, [*rise, 0.02, 0.02, 0.01, 0.01]), rates


def case_a_last_pass_traced_without_a_gradient_hands_on_those_of_others(rank: int, size: int) -> None:
    for function in (lambda body: body, tf.function):
        pair = [tf.Variable(1.0), tf.Variable(1.0)]
        optimizer = hvdk.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
        optimizer.build(pair)
        some = function(lambda: optimizer.apply([tf.constant(1.0), None], pair))  # noqa: B023
        both = function(lambda: optimizer.apply([tf.constant(1.0), tf.constant(3.0)], pair))  # noqa: B023
        for step in (some, some, both, some, some, both):
            step()
        assert [float(variable) for variable in pair] == [-5.0, -5.0], pair


class Late(keras.Model):  # type: ignore[misc, unused-ignore]
    """Makes its variables with the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = keras.layers.Dense(4), keras.layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.outer(self.inner(x))


def case_what_is_made_with_the_first_batch_is_broadcast_after_it(rank: int, size: int) -> None:
    for steps in (1, 2):
        keras.utils.set_random_seed(rank)
        model = Late()
        optimizer = hvdk.DistributedOptimizer(keras.optimizers.Adam(0.01))
        model.compile(optimizer, entropy, jit_compile=False, steps_per_execution=steps)
        x, y = (mine(array, rank, size) for array in batch(0))
        begin = hvdk.callbacks.BroadcastGlobalVariablesCallback(0)
        model.fit(x, y, batch_size=ROWS // size // 4, epochs=2, verbose=0, callbacks=[begin])
        same_everywhere([*model.variables, *model.optimizer.variables])


def case_models_are_saved_under_their_own_names(rank: int, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model = net()
        named = keras.optimizers.SGD(0.05, momentum=0.9, name="mine")
        model.compile(hvdk.DistributedOptimizer(named), entropy, jit_compile=False)
        x, y = (mine(array, rank, size) for array in batch(0))
        model.fit(x, y, verbose=0)
        model.save(path)
        if rank == 0:
            model.export(Path(folder) / "exported", verbose=False)
            tf.saved_model.save(model, str(Path(folder) / "saved"))
            np.save(Path(folder) / "given.npy", x)
            np.save(Path(folder) / "answer.npy", model(x).numpy())
            command = [sys.executable, "-c", LOAD]
            loaded = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
            assert loaded.returncode == 0, loaded.stderr
        plain, again = keras.models.load_model(path), hvdk.load_model(path)
        assert type(plain.optimizer) is keras.optimizers.SGD and type(again.optimizer).__name__ == "SGD"
        again.jit_compile = False
        again.fit(x, y, verbose=0)
        model.fit(x, y, verbose=0)
        close(again, model, 1e-6)
        copy = type(again.optimizer).from_config(again.optimizer.get_config())
        assert type(copy) is keras.optimizers.SGD and hvdk.DistributedOptimizer(copy).name == "mine"
        assert int(again.optimizer.iterations) == 2 and again.optimizer.get_config() == model.optimizer.get_config()
        model.compile(hvdk.DistributedOptimizer(Registered(0.05)), entropy, jit_compile=False)
        model.save(path)
        assert type(keras.models.load_model(path).optimizer) is Registered
        assert isinstance(hvdk.load_model(path).optimizer, Registered)
    kinds = (
        hvdk.allreduce([float(rank)]),
        hvdk.allgather([rank]),
        hvdk.broadcast([rank], 0),
        hvdk.reducescatter([1.0] * size),
    )
    assert all(hasattr(hvdk, name) for name in hvdk.__all__)
    assert [len(array) for array in kinds] == [1, size, 1, 1] and kinds[0][0] == (size - 1) / 2


if __name__ == "__main__":
    run(globals())
