"""Which collectives of functions meet: names in nested and traced-again functions, and numbers of tensors."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf
from casebook import equal, raises, run

import lwcc_tf as hvd


def names_of(function: Any, *arguments: Any) -> list[str]:
    """Return the names of the collectives in a traced function and in all that it calls, sorted."""
    graph = function.get_concrete_function(*arguments).graph.as_graph_def()
    nodes = [*graph.node, *(node for inner in graph.library.function for node in inner.node_def)]
    return sorted(node.attr["tensor_name"].s.decode() for node in nodes if node.op == "LwccAllreduce")


def busy(x: tf.Tensor, on: tf.Tensor) -> tf.Tensor:
    """Return x, late if `on`: so that the ranks come to its reader at different times."""
    for _ in range(3 if on else 0):
        x = x + 0 * tf.reduce_sum(tf.linalg.matmul(tf.random.normal([300, 300]), tf.random.normal([300, 300])))
    return x


def case_a_step_that_is_traced_again_keeps_apart_from_its_helpers(rank: int, size: int) -> None:
    for name in (None, "same"):

        @tf.function
        def mean(x: tf.Tensor) -> tf.Tensor:
            return hvd.allreduce(x, op=hvd.Sum, name=name)  # noqa: B023

        @tf.function
        def step(x: tf.Tensor, rows: tf.Tensor, late: tf.Tensor) -> Any:
            own = hvd.allreduce(busy(x * 100.0, tf.equal(late, 0)), op=hvd.Sum, name=name)  # noqa: B023
            if tf.shape(rows)[0] > 6:
                own += hvd.allreduce(x * 1000.0, op=hvd.Sum, name=name)  # noqa: B023
            twice = mean(busy(x, tf.equal(late, 1))), mean(x * 10.0)
            return own, *twice, hvd.allreduce(x * 7.0, op=hvd.Sum, name=name)  # noqa: B023

        one, kept = tf.constant([1.0]), []
        for count in (8, 5, 3 + rank, 2):  # the third time a rank traces, or does not, at its own time
            rows = tf.ones([count])
            kept.append(names_of(step, one, rows, tf.constant(-1)))
            for late in (-1, rank):
                found = [float(t[0]) / size for t in step(one, rows, tf.constant(late))]
                assert found == [1100.0 if count > 6 else 100.0, 1.0, 10.0, 7.0], (name, count, found)
        # what is called runs before or after what else is called, and so may have its name
        assert kept == [kept[0]] * 4 and len(set(kept[0])) == (3 if name else 4), kept


def case_ops_that_run_at_once_have_names_of_their_own(rank: int, size: int) -> None:
    inner = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="dup"))
    outer = tf.function(
        lambda x: [inner(x), inner(2 * x), *(hvd.allreduce(k * x, op=hvd.Sum, name="dup") for k in (3, 4))]
    )
    one = tf.ones([100])
    assert equal(inner(one), one * size)  # traced before, and by itself
    for _ in range(20):
        assert all(equal(got, one * size * k) for k, got in enumerate(outer(one), 1))
    assert names_of(inner, one) == ["dup"] and names_of(outer, one) == ["dup", "dup.2", "dup.3"]

    @tf.function
    def back(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(inner(x) * 3.0 + hvd.allreduce(x * 5.0, op=hvd.Sum, name="dup"))
        return tape.gradient(loss, x)

    assert equal(back(one), one * size * 8)
    assert {"dup", "dup.2", "dup.grad", "dup.grad.2"} == set(names_of(back, one)), names_of(back, one)


def case_numbers_of_tensors_that_differ_are_an_error_at_once(rank: int, size: int) -> None:
    kind = tf.errors.FailedPreconditionError
    ones = [tf.ones([2])] * 3
    for most in (1, 2, 3):
        for least in range(most):
            mine = least if rank else most
            sizes = " ".join(f"group of {n}" for n in (most, least) if n > 1)

            def group(mine: int = mine) -> Any:
                return hvd.grouped_allreduce(ones[:mine], name="uneven")

            for call in (group, tf.function(group)) if least else ():
                raises(kind, f'"uneven the ranks disagree {sizes}', call)
            variables = [tf.Variable(1.0) for _ in range(mine)]
            raises(kind, f"disagree {sizes}", lambda: hvd.broadcast_variables(variables, 0))  # noqa: B023
            spare = [tf.Variable(1.0) for _ in range(most - mine)]  # without a part in this rank's loss: no gradient

            def step(used: Any = variables, spare: Any = spare) -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.add_n([variable * 2.0 for variable in used])
                return hvd.DistributedGradientTape(tape, groups=1).gradient(loss, [*used, *spare])

            for call in (step, tf.function(step)) if least else ():
                raises(kind, f'"tape.{most}.group0 disagree {sizes}', call)
    assert equal(hvd.allreduce(1.0, op=hvd.Sum), float(size))


def case_functions_for_many_elements_at_once_are_refused(rank: int, size: int) -> None:
    kind, x = tf.errors.InvalidArgumentError, tf.ones([4, 3])
    raises(kind, "allreduce vectorized_map map_fn", lambda: tf.vectorized_map(hvd.allreduce, x))
    data = tf.data.Dataset.from_tensor_slices(x)
    raises(kind, "allgather num_parallel_calls", lambda: data.map(hvd.allgather, num_parallel_calls=2))
    both = tf.data.experimental.map_and_batch(hvd.allgather, 2, num_parallel_calls=2)
    raises(kind, "allgather num_parallel_calls", lambda: data.apply(both))
    assert [t.shape.as_list() for t in data.map(hvd.allgather)] == [[3 * size]] * 4
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = hvd.allreduce(x, op=hvd.Sum)
    raises(kind, "gradient Jacobian experimental_use_pfor=False", lambda: tape.jacobian(y, x))
    assert equal(tf.map_fn(lambda row: hvd.allreduce(row, op=hvd.Sum), x), x * size)


def case_gradients_of_a_function_that_is_called_several_times_meet_their_own(rank: int, size: int) -> None:
    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(x * x, op=hvd.Sum)

    def calls(x: tf.Tensor) -> tf.Tensor:
        return tf.add_n([tf.reduce_sum(inner(x * float(k))) * float(k) for k in range(1, 7)])

    def gradient(of: Any, x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = of(x)
        return tape.gradient(value, x)

    def second(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(gradient(lambda y: tf.reduce_sum(inner(y)), x) ** 2)

    ones = tf.ones([20_000])
    first, again = tf.function(calls), tf.function(lambda x: calls(x) * 1.0)  # the last meets a gradient made before
    ways = [calls, first, again, tf.function(lambda x: first(x) + 0.0)]
    inside, twice = tf.function(functools.partial(gradient, first)), tf.function(second)
    for _ in range(5):
        for way in ways:
            assert np.allclose(gradient(way, ones).numpy(), 2 * size * sum(k**3 for k in range(1, 7)))
        assert np.allclose(inside(ones).numpy(), 2 * size * 441)
        assert np.allclose(gradient(twice, ones).numpy(), 8 * size * size)


if __name__ == "__main__":
    run(globals())
