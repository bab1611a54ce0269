"""What scripts written for Horovod do: resuming, Adasum, graphs of TensorFlow 1, positions of arguments, names."""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from casebook import equal, raises, run, same_everywhere

import lwcc
import lwcc_tf as hvd
import lwcc_tf.keras as hvdk

X, Y = np.ones((16, 4), np.float32), np.ones((16, 2), np.float32)


def net() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])


def fit(model: keras.Model, *callbacks: Any) -> None:
    model.fit(X, Y, verbose=0, callbacks=list(callbacks))


def case_one_rank_may_load_what_training_goes_on_with(rank: int, size: int) -> None:
    callbacks, model = hvdk.callbacks, net()
    model.compile(hvdk.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse", jit_compile=False)
    if rank == 0:
        trained = net()
        trained.compile(keras.optimizers.Adam(0.02), "mse")
        for _ in range(3):
            fit(trained)
        with tempfile.TemporaryDirectory() as folder:
            trained.save(Path(folder) / "resumed.keras")
            model = hvdk.load_model(Path(folder) / "resumed.keras")
        model.jit_compile = False
    fit(model, callbacks.BroadcastGlobalVariablesCallback(0))
    assert int(model.optimizer.iterations) == 4 and np.isclose(float(model.optimizer.learning_rate), 0.02)
    same_everywhere([*model.variables, *model.optimizer.variables])
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, use_bias=rank == 0)])
    other.compile(hvdk.DistributedOptimizer(keras.optimizers.SGD()), "mse", jit_compile=False)
    if size > 1:  # SGD: iteration, learning rate
        raises(
            lwcc.Mismatch,
            "rank 0 has 4 rank 1 has 3",
            lambda: fit(other, callbacks.BroadcastGlobalVariablesCallback(0)),
        )


def case_a_rank_may_make_more_optimizers(rank: int, size: int) -> None:
    spare = [hvdk.DistributedOptimizer(keras.optimizers.SGD()) for _ in range(rank)]
    models = [net(), net()]
    for model in models:
        model.compile(hvdk.DistributedOptimizer(keras.optimizers.SGD()), "mse", jit_compile=False)
        fit(model, hvdk.callbacks.BroadcastGlobalVariablesCallback(0))
    same_everywhere(models[0].variables + models[1].variables)
    assert len(spare) == rank


def case_adasum_sums_gradients_and_steps_adaptively(rank: int, size: int) -> None:
    same = tf.Variable([2.0, 4.0])
    apart = tf.Variable(tf.zeros([size]))  # gradients at right angles
    for in_graph in (False, True):

        def gradients() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(same * 3.0) + (rank + 1.0) * apart[rank]
                loss += 0.0 * tf.reduce_sum(tf.gather(apart, [0]))
            return hvd.DistributedGradientTape(tape, op=hvd.Adasum).gradient(loss, [same, apart])

        first, second = (tf.function(gradients) if in_graph else gradients)()
        assert np.allclose(first, 3.0) and np.allclose(tf.convert_to_tensor(second), np.arange(1.0, size + 1))
        for step in (1.0, 0.5):
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(step), op=hvd.Adasum)
            weights = [tf.Variable([2.0, 4.0]), tf.Variable(tf.zeros([size]))]
            weights = [keras.Variable(w) for w in weights]
            optimizer.build(weights)
            grads = [tf.fill([2], 3.0), tf.one_hot(rank, size) * (rank + 1.0)]

            def apply() -> None:
                optimizer.apply_gradients(zip(grads, weights))  # noqa: B023

            (tf.function(apply) if in_graph else apply)()
            assert np.allclose(weights[0], [2 - 3 * step, 4 - 3 * step]), weights[0]
            assert np.allclose(weights[1], -step * np.arange(1.0, size + 1)), weights[1]
    model = net()
    model.compile(hvdk.DistributedOptimizer(keras.optimizers.Adam(0.01), op=hvd.Adasum), "mse", jit_compile=False)
    fit(model, hvdk.callbacks.BroadcastGlobalVariablesCallback(0))
    same_everywhere(model.variables)


def case_graphs_of_tensorflow_1_start_with_equal_variables(rank: int, size: int) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        for resource in (True, False):
            variable = v1.get_variable(f"v{resource}", initializer=float(rank + 1), use_resource=resource)
            for op in (hvd.broadcast_variables([variable], size - 1), hvd.broadcast_([variable], size - 1, name="b")):
                session.run(v1.global_variables_initializer())
                assert float(session.run(variable)) == rank + 1
                session.run(op)
                assert float(session.run(variable)) == size
        session.run(v1.global_variables_initializer())
        session.run(hvd.broadcast_global_variables(0))
        assert float(session.run(variable)) == 1.0
    with tf.Graph().as_default():
        variable = v1.get_variable("v", initializer=float(rank + 1))
        with v1.train.MonitoredSession(hooks=[hvd.BroadcastGlobalVariablesHook(0)]) as session:
            assert float(session.run(variable)) == 1.0
    raises(ValueError, "broadcast_variables(variables,", lambda: hvd.broadcast_global_variables(0))


def case_arguments_may_come_by_position(rank: int, size: int) -> None:
    schedule, warmup = hvdk.callbacks.LearningRateScheduleCallback, hvdk.callbacks.LearningRateWarmupCallback
    assert schedule(0.1, lambda epoch: 1.0, 0, None, True, True, 10).steps_per_epoch == 10
    assert warmup(0.1, 5, True, 7, 1).steps_per_epoch == 7
    sgd = keras.optimizers.SGD
    hvd.DistributedOptimizer(sgd(), None, False, "", "", hvd.Compression.fp16, True, 2, hvd.Sum, 1.0, True)
    hvdk.DistributedOptimizer(sgd(), None, "", "", hvd.Compression.fp16, True, 1.0, hvd.Sum, 2, True)
    hvd.DistributedGradientTape(tf.GradientTape(), "", "", hvd.Compression.fp16, True, hvd.Average, 2.0)
    assert equal(hvd.allreduce(1.0, None, "", "", hvd.Compression.none, hvd.Sum, 0.5, 2.0, "places"), float(size))
    assert float(hvdk.allreduce(1.0, "places", None, 0.5, 2.0, hvd.Sum)) == size
    third = [list(inspect.signature(f).parameters)[2] for f in (hvd.DistributedOptimizer, hvdk.DistributedOptimizer)]
    assert third == ["use_locking", "device_dense"]


def case_both_modules_know_the_job(rank: int, size: int) -> None:
    for module in (hvd, hvdk):
        assert module.is_initialized() and module.is_homogeneous()
        assert (module.rank(), module.size()) == (module.local_rank(), module.local_size()) == (rank, size)
        assert (module.cross_rank(), module.cross_size()) == (0, 1)
        assert module.gloo_enabled() and module.gloo_built()
        mpi = (module.mpi_threads_supported(), module.mpi_enabled(), module.mpi_built())
        assert not any((*mpi, module.nccl_built(), module.ddl_built(), module.ccl_built(), module.cuda_built()))
        assert not module.rocm_built() and module.HorovodInternalError is lwcc.LwccError
        kinds = (module.Average, module.Sum, module.Adasum, module.Min, module.Max, module.Product)
        assert [int(kind) for kind in kinds] == list(range(6))
        everybody = module.add_process_set(module.ProcessSet(list(range(size))[: size - 1] or [0]))
        assert module.global_process_set.size() == size and module.remove_process_set(everybody)
        with tempfile.TemporaryDirectory() as folder:
            module.start_timeline(f"{folder}/{rank}.json")
            assert hvd.allgather_object(module.Compression is hvd.Compression) == [True] * size
            module.stop_timeline()
        module.shutdown()
        module.init()


def case_names_that_mean_nothing_here_say_what_does(rank: int, size: int) -> None:
    for module in (hvd, hvdk):
        assert module.run is lwcc.run and issubclass(module.HostsUpdatedInterrupt, RuntimeError)
        assert issubclass(module.HorovodVersionMismatchError, ImportError)
        raises(AttributeError, "elastic save checkpoints", lambda: module.elastic)  # noqa: B023
        raises(AttributeError, "data shard", lambda: module.data)  # noqa: B023
    raises(AttributeError, "BroadcastGlobalVariablesCallback", lambda: hvdk.broadcast_global_variables)
    raises(AttributeError, "BroadcastGlobalVariablesCallback", lambda: hvdk.BroadcastGlobalVariablesHook)


def case_what_cannot_travel_is_refused_by_name(rank: int, size: int) -> None:
    calls = (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter, lambda x: hvd.broadcast(x, 0))
    ragged, sparse = tf.ragged.constant([[1.0], [2.0, 3.0]]), tf.sparse.from_dense([[1.0, 0.0]])
    titles = ("allreduce", "allgather", "alltoall", "reducescatter", "broadcast")
    for call, title in zip(calls, titles):
        for value, words in ((ragged, "RaggedTensor"), (sparse, "SparseTensor"), (None, "None"), ("a", "string")):
            raises(ValueError, f"lwcc: {title} takes {words}", lambda: call(value))  # noqa: B023
    raises(ValueError, "lwcc: allreduce takes string", lambda: tf.function(hvd.allreduce)(tf.constant(["a"])))
    assert hvd.allgather(ragged.row_lengths()).numpy().tolist() == [1, 2] * size
    assert tf.function(hvd.barrier)().shape == () and hvd.barrier() is None

    @tf.function
    def ordered() -> tf.Tensor:
        with tf.control_dependencies([hvd.barrier()]):
            return tf.constant(3)

    assert int(ordered()) == 3


if __name__ == "__main__":
    run(globals())
