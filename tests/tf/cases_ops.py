"""The collectives on tensors, on any number of ranks: eager and in functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from casebook import equal, raises, run

import lwcc
import lwcc_tf as hvd
from lwcc_tf import library

FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
INTS = (tf.uint8, tf.int8, tf.uint16, tf.int16, tf.uint32, tf.int32, tf.uint64, tf.int64)


def values(rank: int, dtype: tf.DType, shape: tuple[int, ...] = (3, 5)) -> tf.Tensor:
    """Small whole numbers, so that sums are exact in every type."""
    count = int(np.prod(shape, dtype=np.int64))
    return tf.cast(((np.arange(count) * 7 + rank * 3) % 5).reshape(shape), dtype)


def case_allreduce_sums_every_type_and_shape(rank: int, size: int) -> None:
    shapes = ((3, 5), (), (0,), (1, 0, 4), (1000,))
    for dtype in FLOATS + INTS:
        mine = [values(rank, dtype, shape) for shape in shapes]
        expected = [sum(values(r, tf.int64, shape).numpy() for r in range(size)) for shape in shapes]
        eager = [hvd.allreduce(tensor, op=hvd.Sum) for tensor in mine]
        in_graph = tf.function(lambda tensors: [hvd.allreduce(tensor, op=hvd.Sum) for tensor in tensors])(mine)
        grouped = hvd.grouped_allreduce(mine, op=hvd.Sum, name=f"grouped.{dtype.name}")
        for got in (eager, in_graph, grouped):
            for tensor, wanted in zip(got, expected):
                assert equal(tensor, tf.cast(wanted, dtype)), (dtype, tensor)


def case_allreduce_averages_and_takes_extremes(rank: int, size: int) -> None:
    for dtype in FLOATS + (tf.int32, tf.int64, tf.uint8):
        mine = values(rank, dtype)
        everybody = np.stack([values(r, tf.float64).numpy() for r in range(size)])
        assert equal(hvd.allreduce(mine, op=hvd.Min), tf.cast(everybody.min(0), dtype)), dtype
        assert equal(hvd.allreduce(mine, op=hvd.Max), tf.cast(everybody.max(0), dtype)), dtype
        assert equal(hvd.allreduce(mine, op=hvd.Product), tf.cast(everybody.prod(0), dtype)), dtype
        got = tf.cast(hvd.allreduce(mine), tf.float64).numpy()
        mean = tf.cast(tf.cast(everybody.sum(0) / size, dtype), tf.float64).numpy()
        assert abs(got - mean).max() <= (0.02 if dtype.size == 2 else 1e-6), dtype


def case_every_collective_takes_every_type(rank: int, size: int) -> None:
    odd, pair = np.arange(size) % 2, np.ones((1, 2), np.int64)
    for dtype in FLOATS + INTS + (tf.bool, tf.complex64):
        mine = tf.cast(np.full([size, 2], rank % 2), dtype)
        assert equal(hvd.broadcast(mine, size - 1), tf.cast(np.full([size, 2], odd[-1]), dtype)), dtype
        assert equal(hvd.allgather(mine), tf.cast(np.repeat(odd, size)[:, None] * pair, dtype)), dtype
        assert equal(hvd.alltoall(mine), tf.cast(odd[:, None] * pair, dtype)), dtype
        for total in (hvd.allreduce(mine, op=hvd.Sum)[:1], hvd.reducescatter(mine, op=hvd.Sum)):  # of bool: or
            assert equal(total, tf.cast(np.full([1, 2], odd.sum()), dtype)), dtype


def case_bool_and_complex_travel(rank: int, size: int) -> None:
    flags = tf.constant([True, rank == 0, False])
    assert hvd.allreduce(flags, op=hvd.Max).numpy().tolist() == [True, True, False]
    assert hvd.allreduce(flags, op=hvd.Min).numpy().tolist() == [True, size == 1, False]
    assert hvd.allgather(flags).numpy().tolist() == [flag for r in range(size) for flag in (True, r == 0, False)]
    raises(ValueError, "Average bool use Sum", lambda: hvd.allreduce(flags, name="flags"))
    for dtype in (tf.complex64, tf.complex128):
        mine = tf.cast(tf.fill([4, 3], complex(rank, -rank)), dtype)
        total = sum(range(size))
        assert equal(hvd.allreduce(mine, op=hvd.Sum), tf.cast(tf.fill([4, 3], complex(total, -total)), dtype))
        assert hvd.allgather(mine).shape == (4 * size, 3)
        assert equal(hvd.broadcast(mine, size - 1), tf.cast(tf.fill([4, 3], complex(size - 1, 1 - size)), dtype))
        raises(ValueError, "Max complex", lambda: hvd.allreduce(mine, op=hvd.Max))  # noqa: B023


def case_scale_factors_have_the_precision_of_a_double(rank: int, size: int) -> None:
    mine = tf.fill([5], tf.constant(rank + 1.0, tf.float64))
    total = float(sum(r + 1 for r in range(size)))
    got = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.1, postscale_factor=10.0 / 3.0)
    assert abs(got.numpy() - total / 3).max() < 1e-14
    assert abs(hvd.allreduce(mine, prescale_factor=2.0).numpy() - 2 * total / size).max() < 1e-14
    assert equal(hvd.allreduce(mine, average=False), tf.fill([5], tf.constant(total, tf.float64)))
    raises(ValueError, "average op", lambda: hvd.allreduce(mine, average=True, op=hvd.Sum))


def case_compression_halves_what_travels(rank: int, size: int) -> None:
    mine = [tf.fill([3], rank + 0.25), tf.fill([2], tf.constant(rank * 2, tf.int64)), tf.fill([2], tf.float64.max)]
    for kind in (hvd.Compression.fp16, hvd.Compression.bf16):
        half, whole = hvd.grouped_allreduce(mine[:2], compression=kind)
        assert half.dtype == tf.float32 and whole.dtype == tf.int64
        assert equal(half, tf.fill([3], sum(range(size)) / size + 0.25))
        assert equal(whole, tf.fill([2], tf.constant(sum(2 * r for r in range(size)) // size, tf.int64)))
    narrow = hvd.allreduce(mine[2], compression=hvd.Compression.fp16).numpy()
    assert np.isinf(narrow).all(), "float64's largest value does not fit in half a float"


def case_gathering_ranks_may_bring_different_rows(rank: int, size: int) -> None:
    for dtype in (tf.float32, tf.bfloat16, tf.int64, tf.bool):
        mine = tf.cast(tf.fill([rank, 2], rank), dtype)
        expected = tf.cast(np.repeat(np.arange(size), np.arange(size))[:, None] * np.ones((1, 2), np.int64), dtype)
        assert equal(hvd.allgather(mine), expected)
        gather = tf.function(lambda tensor: [hvd.allgather(tensor), *hvd.grouped_allgather([tensor] * 2, name="pair")])
        assert all(equal(got, expected) for got in gather(mine))
        assert [out.shape.as_list() for out in gather.get_concrete_function(mine).outputs] == [[None, 2]] * 3
    assert hvd.allgather(tf.constant(rank)).numpy().tolist() == list(range(size))


def case_scalars_that_the_graph_does_not_know_as_such_are_rows_too(rank: int, size: int) -> None:
    for dtype in (tf.float32, tf.complex64):
        anything = [tf.TensorSpec(None, dtype)]
        mine = tf.cast(rank + 1, dtype)
        gather = tf.function(hvd.allgather, input_signature=anything)
        for tensor in (mine, tf.fill([1], mine)):
            assert equal(gather(tensor), tf.cast(tf.range(1, size + 1), dtype)), dtype

        @tf.function(input_signature=anything)
        def back(tensor: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(tensor)
                total = tf.reduce_sum(hvd.allgather(tensor, name="back"))
            return tape.gradient(total, tensor)

        assert equal(back(mine), tf.ones([], dtype)) and equal(back(tf.fill([2], mine)), tf.ones([2], dtype))
        for call in (hvd.alltoall, lambda tensor: hvd.reducescatter(tensor, op=hvd.Sum)):
            deal = tf.function(call, input_signature=anything)
            raises(tf.errors.InvalidArgumentError, "scalar no rows", lambda: deal(mine))  # noqa: B023


def case_broadcast_takes_the_roots_values(rank: int, size: int) -> None:
    for root in range(size):
        assert equal(hvd.broadcast(tf.fill([4], rank), root), tf.fill([4], root))
    variables = [tf.Variable(tf.fill([2, 2], float(rank))), tf.Variable(rank), tf.Variable(tf.zeros([0]))]
    hvd.broadcast_variables(variables, root_rank=size - 1)
    assert equal(variables[0], tf.fill([2, 2], float(size - 1))) and equal(variables[1], size - 1)
    tf.function(lambda: hvd.broadcast_(variables, 0, name="again") and None)()
    hvd.broadcast_variables([], root_rank=0)
    raises(ValueError, "item 1 no variable", lambda: hvd.broadcast_variables([variables[0], 3], root_rank=0))
    bad = raises(tf.errors.InvalidArgumentError, "root", lambda: hvd.broadcast(tf.ones(2), size + 3, name="root"))
    assert f"root rank {size + 3}" in str(bad)


def case_reducescatter_deals_out_rows(rank: int, size: int) -> None:
    mine = tf.reshape(tf.range(2 * (2 * size + 1), dtype=tf.float32), [-1, 2]) * (rank + 1)
    whole = tf.reshape(tf.range(2 * (2 * size + 1), dtype=tf.float32), [-1, 2]).numpy() * sum(range(size + 1))
    first = 0 if rank == 0 else 3 + 2 * (rank - 1)
    rows = whole[first : first + (3 if rank == 0 else 2)]
    assert equal(hvd.reducescatter(mine, op=hvd.Sum), rows)
    assert np.allclose(tf.function(hvd.reducescatter)(mine).numpy(), rows / size)
    assert equal(hvd.grouped_allreduce(mine, op=hvd.Max)[1], [float(size * 2), float(size * 3)])  # rows are a list too
    pair = hvd.grouped_reducescatter([mine, tf.cast(mine, tf.float64)], op=hvd.Sum)
    assert equal(pair[0], rows) and equal(pair[1], tf.cast(rows, tf.float64))
    for _ in range(2):  # a known name may come back as another collective's
        assert equal(hvd.allreduce(mine, op=hvd.Sum, name="again"), whole)
        assert equal(hvd.reducescatter(mine, op=hvd.Sum, name="again"), rows)
    raises(ValueError, "Average Max", lambda: hvd.reducescatter(mine, op=hvd.Max))
    raises(ValueError, "dimension", lambda: hvd.reducescatter(tf.constant(1.0)))


def case_alltoall_sends_rows_to_each_rank(rank: int, size: int) -> None:
    mine = tf.range(2 * size) + 100 * rank
    expected = np.concatenate([np.array([0, 1]) + 2 * rank + 100 * r for r in range(size)]).astype(np.int32)
    assert equal(hvd.alltoall(mine), expected)
    splits = tf.constant([r + 1 for r in range(size)])
    rows = tf.repeat(tf.range(size), splits)
    for call in (hvd.alltoall, tf.function(hvd.alltoall)):
        got, received = call(tf.stack([rows, rows * 0 + rank], 1), splits)
        assert equal(received, tf.fill([size], rank + 1))
        senders = np.repeat(np.arange(size), rank + 1)
        assert equal(got, np.stack([np.full_like(senders, rank), senders], 1).astype(np.int32))
    raises(tf.errors.InvalidArgumentError, "splits add up", lambda: hvd.alltoall(rows, [9] * size, name="a"))
    raises(tf.errors.InvalidArgumentError, "splits each", lambda: hvd.alltoall(rows, [1] * (size + 1), name="b"))


def case_arguments_of_a_wrong_kind_are_refused_in_words(rank: int, size: int) -> None:
    rows = tf.range(size)
    for in_function in (False, True):
        for root, kind in ((2**32, ValueError), (-(2**70), ValueError), (0.5, TypeError), (None, TypeError)):
            raises(kind, f"root_rank={root}", trying(lambda: hvd.broadcast(rows, root), in_function))  # noqa: B023
        for factor in (None, "2"):
            raises(TypeError, f"prescale_factor={factor!r}", trying(
                lambda: hvd.allreduce(1.0, prescale_factor=factor), in_function))  # noqa: B023  # fmt: skip
        for name, kind in ((5, TypeError), (b"name", TypeError), ("a\0b", ValueError)):
            raises(kind, f"name={name!r}", trying(lambda: hvd.allreduce(1.0, name=name), in_function))  # noqa: B023
        for splits, kind, word in (
            ([1.0] * size, TypeError, "float32"), ([True] * size, TypeError, "bool"),
            (["1"] * size, TypeError, "string"), ([], ValueError, "(0,)"),
            ([[1] * size], ValueError, f"(1, {size})"), (1, ValueError, "()"),
        ):  # fmt: skip
            raises(kind, f"splits {word}", trying(lambda: hvd.alltoall(rows, splits), in_function))  # noqa: B023
        raises(TypeError, "compression='fp16'", trying(lambda: hvd.allreduce(1.0, compression="fp16"), in_function))
        raises(TypeError, "op='sum'", trying(lambda: hvd.reducescatter(rows, op="sum"), in_function))
    raises(ValueError, "process_set_id=4294967296", lambda: hvd.size_op(2**32))
    passes = {"backward_passes_per_step": 1.5}
    raises(TypeError, "passes 1.5", lambda: hvd.DistributedOptimizer(tf.keras.optimizers.SGD(), **passes))
    for bad in ({"gradient_predivide_factor": 0.0}, {"gradient_predivide_factor": float("nan")}, {"groups": "all"}):
        raises(ValueError, next(iter(bad)), lambda: hvd.DistributedGradientTape(tf.GradientTape(), **bad))  # noqa: B023
    assert equal(hvd.broadcast(rows + rank, np.int64(size - 1)), rows + size - 1)
    assert equal(hvd.allreduce(1.0, op=hvd.Sum, prescale_factor=tf.constant(2.0)), 2.0 * size)


def trying(call: Any, in_function: bool) -> Any:
    """Return the call, or a function that makes it and is not rewritten, so that errors keep their type."""
    return tf.function(call, autograph=False) if in_function else call


def case_sparse_gradients_are_gathered(rank: int, size: int) -> None:
    mine = tf.IndexedSlices(tf.fill([rank + 1, 2], float(rank + 1)), tf.range(rank + 1), tf.constant([size, 2]))
    for op, factor in ((hvd.Sum, 1), (hvd.Average, size)):
        got = tf.convert_to_tensor(hvd.allreduce(mine, op=op)).numpy()
        expected = np.array([[sum(r + 1 for r in range(i, size)) / factor] * 2 for i in range(size)], np.float32)
        assert np.allclose(got, expected)
    raises(ValueError, "IndexedSlices", lambda: hvd.allreduce(mine, op=hvd.Max))


def case_numbers_are_looked_up_when_they_run(rank: int, size: int) -> None:
    numbers = tf.function(lambda: [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()])
    assert [int(n) for n in numbers()] == [rank, size, hvd.local_rank(), hvd.local_size()]
    assert int(hvd.process_set_included_op()) == 1 and hvd.barrier() is None


def case_objects_travel(rank: int, size: int) -> None:
    assert hvd.broadcast_object({"rank": rank}, root_rank=size - 1) == {"rank": size - 1}
    assert hvd.broadcast_object_fn(root_rank=0)([rank]) == [0]
    assert hvd.allgather_object("x" * rank) == ["x" * r for r in range(size)]
    assert hvd.HorovodInternalError is hvd.LwccError and hvd.gloo_built() and not hvd.mpi_enabled()
    assert all(hasattr(hvd, name) for name in hvd.__all__)
    raises(AttributeError, "no elastic: fixed", lambda: hvd.elastic)
    raises(TypeError, "no optimizer of Keras DistributedGradientTape", lambda: hvd.DistributedOptimizer(
        tf.compat.v1.train.GradientDescentOptimizer(0.1)))  # fmt: skip


def case_graphs_of_tensorflow_1_communicate(rank: int, size: int) -> None:
    library.asynchronous.cache_clear()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        helper = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
        total, in_function = hvd.allreduce(tf.constant([1.0]) + rank, op=hvd.Sum), helper(tf.ones([2]))
        gathered = hvd.allgather(tf.fill([rank + 1], rank))
        for _ in range(2):
            found = session.run([total, in_function, gathered, hvd.rank_op()])
            assert float(found[0][0]) == sum(range(1, size + 1)) and found[1].tolist() == [size] * 2
            assert found[2].tolist() == [r for r in range(size) for _ in range(r + 1)] and found[3] == rank


@lwcc.algorithm("allreduce")
def my_ring(plan: lwcc.Plan, rank: int, size: int) -> None:
    for k in plan.rounds(size - 1):
        plan.send((rank + 1) % size, chunk=rank - k)
        plan.recv_reduce((rank - 1) % size, chunk=rank - k - 1)
    for k in plan.rounds(size - 1):
        plan.send((rank + 1) % size, chunk=rank + 1 - k)
        plan.recv_copy((rank - 1) % size, chunk=rank - k)


def case_a_call_may_name_its_algorithm(rank: int, size: int) -> None:
    mine = tf.reshape(tf.range(4.0 * size), [2 * size, 2]) + rank
    calls = (
        ("ring", lambda way, name: hvd.allreduce(mine, op=hvd.Sum, name=name, algorithm=way)),
        (my_ring, lambda way, name: hvd.grouped_allreduce([mine, mine], op=hvd.Sum, name=name, algorithm=way)[1]),
        ("ring", lambda way, name: hvd.allgather(mine, name, algorithm=way)),
        ("binomial", lambda way, name: hvd.broadcast(mine, size - 1, name, algorithm=way)),
        ("circulant", lambda way, name: hvd.reducescatter(mine, op=hvd.Sum, name=name, algorithm=way)),
        ("pairwise", lambda way, name: hvd.alltoall(mine, name=name, algorithm=way)),
    )
    for i, (algorithm, call) in enumerate(calls):
        expected = call(None, f"selected.{i}")
        assert equal(call(algorithm, f"named.{i}"), expected)
        assert equal(tf.function(lambda: call(algorithm, f"traced.{i}"))(), expected)  # noqa: B023
        if size > 1:  # what a rank names is part of what it asks for
            raises(tf.errors.FailedPreconditionError, f"disagree algorithm {getattr(algorithm, 'name', algorithm)}",
                   lambda: call(algorithm if rank else None, f"apart.{i}"))  # noqa: B023  # fmt: skip
        raises(ValueError, "no algorithm 'rung'", lambda: call("rung", "rung"))  # noqa: B023
    with tf.GradientTape() as tape:
        tape.watch(mine)
        total = hvd.allreduce(mine, name="forward", algorithm=my_ring)
    assert equal(tape.gradient(total, mine), tf.ones_like(mine))
    sparse = tf.IndexedSlices(mine, tf.range(2 * size), tf.constant([2 * size, 2]))
    raises(ValueError, "IndexedSlices algorithm=", lambda: hvd.allreduce(sparse, algorithm="ring"))


def case_process_sets_work_apart(rank: int, size: int) -> None:
    if size == 1:
        return
    ranks = [0, size - 1] if size > 2 else [1]
    members = hvd.add_process_set(ranks)
    if members.included():
        mine = tf.constant([float(rank)])
        assert equal(hvd.allreduce(mine, op=hvd.Sum, process_set=members), [float(sum(ranks))])
        assert equal(tf.function(lambda x: hvd.broadcast(x, size - 1, process_set=members))(mine), [size - 1.0])
        assert int(hvd.size_op(members.process_set_id)) == len(ranks)
        assert hvd.allgather(mine, process_set=members).shape == (len(ranks),)
    else:
        assert int(hvd.process_set_included_op(members.process_set_id)) == 0
        raises(tf.errors.InvalidArgumentError, "no member", lambda: hvd.allreduce([1.0], process_set=members))
    hvd.remove_process_set(members)
    raises(ValueError, "not in use", lambda: hvd.allreduce([1.0], process_set=members))


def case_ranks_that_have_joined_count_no_more(rank: int, size: int) -> None:
    average = tf.function(lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16))
    for step in range(rank + 1):
        there = [r for r in range(size) if r >= step]
        mean = sum(there) / len(there)
        mine = tf.IndexedSlices(tf.fill([1, 2], float(rank)), tf.constant([0]), tf.constant([1, 2]))
        assert np.allclose(average(tf.fill([3], float(rank))).numpy(), mean)
        assert np.allclose(hvd.allreduce(tf.fill([3], float(rank))).numpy(), mean)
        assert np.allclose(tf.convert_to_tensor(hvd.allreduce(mine)).numpy(), mean)
    assert hvd.join() == size - 1
    assert equal(hvd.allreduce(1, op=hvd.Sum), size)


def case_functions_may_join(rank: int, size: int) -> None:
    @tf.function
    def epoch(batches: tf.Tensor) -> tuple[tf.Tensor, ...]:
        total = tf.zeros([2])
        for _ in tf.range(batches):
            total += hvd.allreduce(tf.fill([2], float(rank)))
        total += hvd.allreduce(tf.fill([2], float(rank)), name="outside the loop")
        last = hvd.join()
        return total, last, hvd.allreduce(tf.constant(1), op=hvd.Sum, name="after")

    for begin in (0, 1):  # the rounds that rank r takes part in: one more each
        total, last, after = epoch(tf.constant(begin + rank))
        assert int(last) == size - 1 and int(after) == size
        assert hvd.allreduce(1, op=hvd.Sum).numpy() == size  # without a name: counted anew on every rank
    means = [sum(range(r, size)) / (size - r) for r in range(size)]
    assert rank or np.allclose(total.numpy(), means[0] * 2), (total, means)
    raises(tf.errors.InvalidArgumentError, "join jit_compile=False", tf.function(hvd.join, jit_compile=True))


def case_outside_a_job_calls_fail_with_advice(rank: int, size: int) -> None:
    hvd.barrier()
    reduce = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
    assert equal(reduce(tf.ones([2])), tf.fill([2], float(size)))
    hvd.shutdown()
    raises(ValueError, "not initialised init()", lambda: hvd.allreduce([1.0]))
    raises(tf.errors.FailedPreconditionError, "not initialised init()", lambda: reduce(tf.ones([2])))
    hvd.init()
    assert equal(reduce(tf.ones([2])), tf.fill([2], float(size)))


if __name__ == "__main__":
    run(globals())
