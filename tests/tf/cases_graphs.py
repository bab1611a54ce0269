"""What functions do to collectives: order, merging, folding, pruning, errors, memory, gradients, XLA."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import tensorflow as tf
from casebook import equal, raises, run

import lwcc_tf as hvd
from lwcc_tf import engine, library

OPS = 64


def counter(which: int) -> int:
    return int(engine.number(which))


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def case_many_independent_calls_in_different_orders_run_at_once(rank: int, size: int) -> None:
    steps = int(os.environ.get("LEAK_STEPS", "400"))
    order = random.Random(f"{os.environ.get('SEED', '20')}.{rank}").sample(range(OPS), OPS)

    @tf.function
    def wrong_elements(step: tf.Tensor) -> tf.Tensor:
        mine = [tf.fill([8 * (1 + i % 50)], step * i + rank) for i in range(OPS)]
        done = {i: hvd.allreduce(mine[i], op=hvd.Sum, name=f"many.{i}") for i in order}
        differ = [done[i] != step * i * size + sum(range(size)) for i in range(OPS)]
        return tf.add_n([tf.math.count_nonzero(found) for found in differ])

    def repeat(times: int) -> None:
        for step in range(times):
            assert int(wrong_elements(tf.constant(step, tf.int64))) == 0, step

    repeat(200)
    counter(library.MOST_UNDER_WAY)
    before = resident()
    repeat(steps)
    after, most = resident(), counter(library.MOST_UNDER_WAY)
    print(f"{steps} steps of {OPS} calls: {most} under way at once; resident {before} to {after} bytes", flush=True)
    assert size == 1 or most >= 16
    assert after < before * 1.02


def case_memory_stays_flat_over_many_calls(rank: int, size: int) -> None:
    @tf.function
    def repeat(tensor: tf.Tensor, times: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(times):
            tensor = hvd.allreduce(tensor, name="loop")
        return tensor

    mine = tf.fill([1000], float(rank))
    for _ in range(300):
        hvd.allreduce(mine)
    repeat(mine, tf.constant(1000))
    before = resident()
    for _ in range(500):
        hvd.allreduce(mine)
    mean = repeat(mine, tf.constant(10_000))
    assert np.allclose(mean.numpy(), sum(range(size)) / size)
    assert resident() < before * 1.02, (before, resident())


def case_equal_calls_are_not_merged_and_constants_not_folded(rank: int, size: int) -> None:
    @tf.function
    def twice(tensor: tf.Tensor) -> Any:
        hvd.allreduce(tensor)  # its result is not used
        return (
            hvd.allreduce(tensor, op=hvd.Sum),
            hvd.allreduce(tensor, op=hvd.Sum),
            hvd.allreduce(tf.ones([3]), op=hvd.Sum),
        )

    requests = hvd.stats()["requests"]
    for step in range(1, 5):
        done = twice(tf.ones([2]))
        assert all(equal(t, tf.fill(t.shape, float(size))) for t in done)
        assert hvd.stats()["requests"] == requests + 4 * step


def case_results_take_over_the_memory_of_their_inputs(rank: int, size: int) -> None:
    before = counter(library.FORWARDED), counter(library.ALLOCATED)
    kept = tf.fill([100], float(rank))
    got = tf.function(lambda x: [hvd.allreduce(x * float(i), op=hvd.Sum) for i in range(2, 12)])(kept)
    assert counter(library.FORWARDED) - before[0] >= 9 and equal(got[3], tf.fill([100], 5.0 * sum(range(size))))
    hvd.allreduce(kept, op=hvd.Sum)
    assert counter(library.ALLOCATED) > before[1] and equal(kept, tf.fill([100], float(rank)))


def case_branches_and_loops_may_communicate(rank: int, size: int) -> None:
    @tf.function
    def choose(flag: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
        tensor = hvd.allreduce(tensor, op=hvd.Sum) if flag else hvd.allgather(tensor)
        while tf.reduce_sum(tensor) < 100.0:
            tensor = hvd.allreduce(tensor, op=hvd.Sum) + 1.0
        return tensor

    assert choose(tf.constant(True), tf.ones([2])).shape == (2,)
    assert choose(tf.constant(False), tf.ones([2])).shape == (2 * size,)
    helper = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="helper"))
    assert equal(tf.function(lambda x: helper(helper(x)))(tf.ones([2])), tf.fill([2], float(size * size)))


def case_ranks_may_trace_a_function_at_different_times(rank: int, size: int) -> None:
    reduce = tf.function(lambda x: hvd.allreduce(tf.reduce_sum(x), op=hvd.Sum))
    for step in range(4):
        rows = 1 + step * (rank % 2)
        assert float(reduce(tf.ones([rows]))) == sum(1.0 + step * (r % 2) for r in range(size))


def case_a_disagreement_is_an_error_everywhere_and_the_function_runs_again(rank: int, size: int) -> None:
    @tf.function(reduce_retracing=True)
    def step(tensor: tf.Tensor) -> Any:
        first = hvd.allreduce(tensor, name="first")
        others = [hvd.allreduce(tf.ones([2]) * i, op=hvd.Sum, name=f"other.{i}") for i in range(20)]
        if rank == 0:  # this rank alone comes to these after the one that fails
            with tf.control_dependencies([first]):
                others = [tf.identity(t) for t in others]
        late = [hvd.allreduce(t, op=hvd.Sum, name=f"late.{i}") for i, t in enumerate(others)]
        return first, late

    for attempt in range(3):
        raises(tf.errors.FailedPreconditionError, '"first the ranks disagree', lambda: step(tf.ones([2 + rank])))
        first, late = step(tf.fill([4], float(rank + attempt)))
        assert np.allclose(first.numpy(), sum(range(size)) / size + attempt)
        assert all(equal(t, tf.fill([2], float(i * size * size))) for i, t in enumerate(late)), attempt
    raises(tf.errors.FailedPreconditionError, "disagree float64", lambda: hvd.allreduce(
        tf.ones([2], tf.float32 if rank else tf.float64), name="eager"))  # fmt: skip
    assert float(hvd.allreduce(1.0, op=hvd.Sum, name="eager")) == size


def case_functions_outlive_a_shutdown_but_not_the_sets_that_they_name(rank: int, size: int) -> None:
    before = hvd.add_process_set([0]) if size > 1 else None
    number = before.process_set_id if before else 0
    within = tf.function(lambda: hvd.allreduce(1.0, op=hvd.Sum, name="within", process_set=before))
    everybody = tf.function(lambda: hvd.allreduce(1.0, op=hvd.Sum, name="everybody"))
    assert float(everybody()) == size and (rank or float(within()) == 1)
    hvd.shutdown()
    raises(tf.errors.FailedPreconditionError, "shut down", everybody)
    hvd.init()
    assert float(everybody()) == size
    if before:
        after = hvd.add_process_set([0, 1] if size > 2 else [1])
        assert after.process_set_id > number  # else the function would meet others' ranks
        if rank == 0:
            raises(tf.errors.InvalidArgumentError, f"no process set {number}", within)
        hvd.remove_process_set(after)


def case_xla_is_refused_with_advice(rank: int, size: int) -> None:
    compiled = tf.function(lambda x: hvd.allreduce(x) * 2.0, jit_compile=True)
    raises(tf.errors.InvalidArgumentError, "jit_compile=False XLA", lambda: compiled(tf.ones([2])))
    inner = tf.function(lambda x: x * 2.0 + 1.0, jit_compile=True)
    outer = tf.function(lambda x: inner(hvd.allreduce(inner(x), op=hvd.Sum)))
    assert equal(outer(tf.ones([2])), tf.fill([2], 6.0 * size + 1.0))


def gradients_of(function: Any, given: tf.Tensor, in_graph: bool) -> tf.Tensor:
    def compute(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(function(x))
        return tape.gradient(loss, x)

    return (tf.function(compute) if in_graph else compute)(given)


def case_every_collective_has_its_gradient(rank: int, size: int) -> None:
    x = tf.reshape(tf.range(float(2 * size)), [-1, 1]) + float(rank)
    weight, mean = float(rank + 1), (size + 1) / 2
    total, rows = mean * size, tf.fill([2 * size, 1], 1.0)
    first = tf.concat([rows[: rank + 1], 0 * rows[rank + 1 :]], 0)
    spread = tf.reshape(tf.repeat(tf.range(1.0, size + 1.0), 2), [-1, 1])
    for in_graph in (False, True):
        for function, expected in (
            (lambda x: weight * hvd.allreduce(x), rows * mean),
            (lambda x: weight * hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5), rows * total / 2),
            (lambda x: weight * hvd.grouped_allreduce([x, x])[0], rows * mean),
            (lambda x: weight * hvd.broadcast(x, 0), rows * (mean if rank == 0 else 0.0)),
            (lambda x: weight * hvd.allgather(x[: rank + 1]), mean * first),
            (lambda x: weight * hvd.reducescatter(x, op=hvd.Sum), spread * size),
            (lambda x: weight * hvd.reducescatter(x), spread),
            (lambda x: weight * hvd.alltoall(x), spread),
            (lambda x: weight * hvd.alltoall(x, [2] * size)[0], spread),
        ):  # fmt: skip
            assert np.allclose(gradients_of(function, x, in_graph).numpy(), expected.numpy()), (in_graph, expected)
        raises(NotImplementedError, "Max no gradient", lambda: gradients_of(
            lambda x: hvd.allreduce(x, op=hvd.Max), x, in_graph))  # noqa: B023  # fmt: skip


if __name__ == "__main__":
    run(globals())
