"""Every collective on real ranks: element types, operations, shapes, in place, out of order, grouped, scaled, big."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SIZES = [2, 3, 4, 5, 8]
HELPERS = '''
import ml_dtypes

def of(r, shape, name, seed=7):
    """The array of rank r: small whole numbers, so that every element type adds them exactly."""
    a = np.random.default_rng([seed, r]).integers(0, 2 if name == "bool" else 4, shape)
    return a.astype(ml_dtypes.bfloat16 if name == "bfloat16" else name)

def all_of(shape, name, n=None):
    return [of(r, shape, name).astype(np.float64) for r in range(n or size)]

def check(got, want, what):
    got = np.asarray(got).astype(np.float64)
    assert got.shape == np.shape(want), (what, got.shape, np.shape(want))
    assert np.array_equal(got, want), f"rank {rank}: {what}: {got.ravel()[:8]} instead of {np.ravel(want)[:8]}"

NAMES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "bool",
         "float16", "bfloat16", "float32", "float64"]
'''


@pytest.mark.parametrize("n", SIZES)
def test_allreduce_of_every_type_and_operation(run_ranks: Any, n: int) -> None:
    run_ranks(
        n,
        HELPERS
        + """
from functools import reduce
FOLDS = {lwcc.Sum: np.add, lwcc.Min: np.minimum, lwcc.Max: np.maximum, lwcc.Product: np.multiply}
for name in NAMES:
    for op, fold in FOLDS.items():
        for shape in [(), (1,), (5,), (33, 7)]:
            a = of(rank, shape, name)
            want = reduce(fold, all_of(shape, name))
            if name == "bool":
                want = np.minimum(want, 1)
            if name == "float16" or name == "bfloat16":
                want = want.astype(a.dtype).astype(np.float64)
            elif name != "bool" and "float" not in name:
                want = want.astype(np.int64).astype(a.dtype).astype(np.float64)
            check(lwcc.allreduce(a, op=op, name=f"{name}.{op}.{len(shape)}{a.size}"), want, (name, op, shape))
""",
    )


@pytest.mark.parametrize("n", SIZES)
def test_average_scales_and_forms_of_allreduce(run_ranks: Any, n: int) -> None:
    run_ranks(
        n,
        HELPERS
        + """
for name in ("float32", "float64"):
    a = of(rank, (100,), name)
    mean = sum(all_of((100,), name)) / size
    out = lwcc.allreduce(a)
    assert np.allclose(out, mean, rtol=1e-6), (rank, out[:4], mean[:4])
    check(lwcc.allgather(out.reshape(1, -1)), np.tile(out, (size, 1)), "the same bits on every rank")
    out = lwcc.allreduce(a, op=lwcc.Sum, prescale_factor=0.5, postscale_factor=4.0)
    check(out, 2 * sum(all_of((100,), name)), "scales")
    kept = a
    assert lwcc.allreduce_(a, op=lwcc.Sum) is kept
    check(a, sum(all_of((100,), name)), "in place")
whole = np.full(6, rank, np.int32)
check(lwcc.allreduce(whole), np.full(6, (size - 1) // 2), "average of whole numbers rounds towards zero")
for shape in [(0,), (4, 0)]:
    assert lwcc.allreduce(np.zeros(shape, np.float32)).shape == shape
t = np.arange(12, dtype=np.float64).reshape(3, 4).T
check(lwcc.allreduce(t, op=lwcc.Sum), t * size, "not contiguous")
try:
    lwcc.allreduce_(t, op=lwcc.Sum)
    raise SystemExit("an output that is not contiguous was taken")
except ValueError as error:
    assert "C-contiguous" in str(error)
bits = of(rank, (64,), "bfloat16").view(np.uint16)
out = lwcc.allreduce(bits, op=lwcc.Sum, dtype="bfloat16")
check(out.view(ml_dtypes.bfloat16), sum(all_of((64,), "bfloat16")), "bfloat16 as uint16")
""",
    )


@pytest.mark.parametrize("n", SIZES)
def test_broadcast_from_every_root(run_ranks: Any, n: int) -> None:
    run_ranks(
        n,
        HELPERS
        + """
for root in range(size):
    for name in NAMES:
        for shape in [(), (0,), (3,), (1000,)]:
            a = of(rank, shape, name)
            want = of(root, shape, name).astype(np.float64)
            check(lwcc.broadcast(a, root), want, (name, root, shape))
            assert lwcc.broadcast_(a, root) is a
            check(a, want, ("in place", name, root, shape))
big = np.random.default_rng(rank).random(300_001)
check(lwcc.broadcast(big, size - 1), np.random.default_rng(size - 1).random(300_001), "big")
""",
    )


@pytest.mark.parametrize("n", SIZES)
def test_allgather_with_different_first_dimensions(run_ranks: Any, n: int) -> None:
    run_ranks(
        n,
        HELPERS
        + """
for name in NAMES:
    for rows in [lambda r: 2, lambda r: r, lambda r: size - r, lambda r: 3 if r == 0 else 0, lambda r: 0]:
        parts = [of(r, (rows(r), 3), name).astype(np.float64) for r in range(size)]
        check(lwcc.allgather(of(rank, (rows(rank), 3), name)), np.concatenate(parts), (name, len(parts[0])))
check(lwcc.allgather(np.float32(rank)), np.arange(size), "0-d")
big = [np.full(50_000 + r, r, np.float32) for r in range(size)]
check(lwcc.allgather(big[rank]), np.concatenate(big), "big")
""",
    )


@pytest.mark.parametrize("n", SIZES)
def test_reducescatter_and_alltoall(run_ranks: Any, n: int) -> None:
    run_ranks(
        n,
        HELPERS
        + """
def part(rows, r):
    base, more = divmod(rows, size)
    start = r * base + min(r, more)
    return slice(start, start + base + (r < more))

for name in NAMES[:-5] + ["float16", "float32", "float64"]:
    for rows in (size, 2 * size, 2 * size + 1, 1, 0):
        total = sum(all_of((rows, 2), name))
        if name == "bool":
            total = np.minimum(total, 1)
        got = lwcc.reducescatter(of(rank, (rows, 2), name), op=lwcc.Sum)
        check(got, total[part(rows, rank)], ("reducescatter", name, rows))
mean = lwcc.reducescatter(np.full((size, 3), float(rank)))
check(mean, np.full((1, 3), (size - 1) / 2), "reducescatter averages by default")

for name in NAMES:
    a = of(rank, (2 * size, 3), name)
    want = np.concatenate([of(r, (2 * size, 3), name)[2 * rank : 2 * rank + 2].astype(np.float64) for r in range(size)])
    check(lwcc.alltoall(a), want, ("alltoall", name))
def splits(r):
    return [(r + d) % 3 for d in range(size)]
def sent(r):
    return np.arange(sum(splits(r)) * 2, dtype=np.float64).reshape(-1, 2) + 1000 * r
ends = [np.concatenate([[0], np.cumsum(splits(r))]) for r in range(size)]
want = np.concatenate([sent(r)[ends[r][rank] : ends[r][rank + 1]] for r in range(size)])
got, received = lwcc.alltoall(sent(rank), splits(rank))
check(got, want, "alltoall with splits")
check(received, [splits(r)[rank] for r in range(size)], "received splits")
none, received = lwcc.alltoall(np.zeros((0, 4), np.float32), [0] * size)
assert none.shape == (0, 4) and received.tolist() == [0] * size
""",
    )


@pytest.mark.parametrize("n", [2, 4, 5])
def test_calls_match_by_name_in_any_order(run_ranks: Any, n: int) -> None:
    run_ranks(
        n,
        HELPERS
        + """
seed = 20240311
print("seed", seed)
order = np.random.default_rng([seed, rank])
for turn in range(20):
    tickets = {}
    for i in order.permutation(30):
        tickets[i] = lwcc.allreduce_async(np.full(3 + i, rank + i, np.float32), op=lwcc.Sum, name=f"t{i}")
    for i in order.permutation(30):
        check(tickets[i].wait(), np.full(3 + i, size * i + size * (size - 1) // 2), (turn, i))
stats = lwcc.stats()
assert stats["cache_hits"] > stats["negotiated"], stats
""",
    )


@pytest.mark.parametrize("n", [2, 3, 4])
def test_groups_are_reduced_as_one(run_ranks: Any, n: int) -> None:
    run_ranks(
        n,
        HELPERS
        + """
for turn in range(3):
    arrays = [of(rank, (k,), name) for k, name in [(1, "float32"), (1000, "float32"), (7, "int64"), (0, "float64")]]
    got = lwcc.grouped_allreduce(arrays, op=lwcc.Sum, name="g")
    for a, out in zip(arrays, got):
        check(out, sum(all_of(a.shape, a.dtype.name)), a.dtype)
    again = lwcc.grouped_allreduce_(arrays, op=lwcc.Max)
    assert all(x is y for x, y in zip(again, arrays))
    check(arrays[1], np.max(all_of((1000,), "float32"), axis=0), "in place")
""",
    )


@pytest.mark.parametrize("n", [2, 5])
def test_big_arrays_and_registered_memory(run_ranks: Any, n: int) -> None:
    run_ranks(
        n,
        HELPERS
        + """
for count in (1 << 20, (1 << 20) + 3):
    a = np.arange(count, dtype=np.float32) % 1000 + rank
    check(lwcc.allreduce(a, op=lwcc.Sum), np.arange(count) % 1000 * size + size * (size - 1) / 2, count)
a = lwcc.empty(250_001, "float32")
from lwcc import memory
assert memory.is_registered(a) and not memory.is_registered(np.zeros(3))
a[:] = rank + 1
for turn in range(3):
    lwcc.allreduce_(a, op=lwcc.Max, name="registered")
    check(a, np.full(250_001, size), "registered")
del a
b = lwcc.empty((3, 5), "float64")
b[:] = 1
check(lwcc.allreduce_(b, op=lwcc.Sum), np.full((3, 5), size), "after freeing")
""",
        timeout=120,
    )


@pytest.mark.parametrize("n", [2, 3, 5])
def test_raw_calls(run_ranks: Any, n: int) -> None:
    run_ranks(
        n,
        HELPERS
        + """
for name in NAMES:
    for count in (0, 1, 1000):
        a = of(rank, (count,), name)
        total = sum(all_of((count,), name))
        want = np.minimum(total, 1) if name == "bool" else total
        check(lwcc.raw.allreduce(a, lwcc.Sum, out=np.empty_like(a)), want, ("raw", name, count))
        check(lwcc.raw.allreduce(a), want, ("raw in place", name, count))
a = np.arange(size * 3, dtype=np.float64).reshape(size, 3) + 100 * rank
check(lwcc.raw.reducescatter(a), sum(np.arange(size * 3).reshape(size, 3)[rank] + 100 * r for r in range(size)), "rs")
check(lwcc.raw.allgather(np.float32(rank)), np.arange(size), "allgather")
check(lwcc.raw.alltoall(a), [np.arange(3) + 3 * rank + 100 * r for r in range(size)], "alltoall")
check(lwcc.raw.broadcast(np.full(5, float(rank)), size - 1), np.full(5, size - 1), "broadcast")
for _ in range(100):
    lwcc.raw.barrier()
""",
    )


@pytest.mark.parametrize("n", [3, 4])
def test_process_sets(run_ranks: Any, n: int) -> None:
    run_ranks(
        n,
        HELPERS
        + """
odd = lwcc.add_process_set(range(1, size, 2))
low = lwcc.add_process_set(lwcc.ProcessSet([0, 1]))
try:
    lwcc.add_process_set([1, 0])
    raise SystemExit("the same set twice")
except ValueError:
    pass
for s in (odd, low):
    assert s.included() == (rank in s.ranks) and s.size() == len(s.ranks)
    if s.included():
        check(lwcc.allreduce(np.full(3, rank), op=lwcc.Sum, process_set=s), np.full(3, sum(s.ranks)), s)
        check(lwcc.allgather(np.float32(rank), process_set=s), s.ranks, s)
        check(lwcc.broadcast(np.float64(rank), s.ranks[-1], process_set=s), float(s.ranks[-1]), s)
check(lwcc.allreduce(np.ones(2), op=lwcc.Sum), np.full(2, size), "all ranks in between")
assert lwcc.remove_process_set(odd) and odd.process_set_id is None
assert not lwcc.remove_process_set(odd)
assert not lwcc.remove_process_set(lwcc.global_process_set)
""",
    )


@pytest.mark.parametrize("n", [2, 4])
def test_objects(run_ranks: Any, n: int) -> None:
    run_ranks(
        n,
        """
thing = {"from": rank, "data": b"x" * (1000 * rank), "nested": [1, (2, 3)]}
got = lwcc.broadcast_object(thing, root_rank=1)
assert got["from"] == 1 and len(got["data"]) == 1000
everybody = lwcc.allgather_object(thing)
assert [g["from"] for g in everybody] == list(range(size))
assert [len(g["data"]) for g in everybody] == [1000 * r for r in range(size)]
""",
    )


@pytest.mark.parametrize("n", [2, 3])
def test_barrier_holds_until_all_have_come(run_ranks: Any, tmp_path: Path, n: int) -> None:
    run_ranks(
        n,
        f"""
from pathlib import Path
here = Path({str(tmp_path)!r})
for turn in range(50):
    (here / f"{{turn}}.{{rank}}").touch()
    lwcc.barrier()
    there = [(here / f"{{turn}}.{{r}}").exists() for r in range(size)]
    assert all(there), (rank, turn, there)
""",
    )


def test_several_threads_of_a_rank_may_call(run_ranks: Any) -> None:
    run_ranks(
        3,
        HELPERS
        + """
import threading
bad = []
def work(k):
    try:
        for turn in range(30):
            out = lwcc.allreduce(np.full(10 * k + 1, k), op=lwcc.Sum, name=f"thread{k}")
            check(out, np.full(10 * k + 1, k * size), k)
    except BaseException as error:
        bad.append(error)
threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
for t in threads: t.start()
for t in threads: t.join()
assert not bad, bad
""",
    )


def test_far_more_pending_names_than_are_remembered(run_ranks: Any) -> None:
    run_ranks(
        2,
        """
import random
names = [f"{i}_".ljust(500, "x") for i in range(15_000)]
for turn in range(2):
    order = list(range(len(names)))
    random.Random(rank).shuffle(order)
    tickets = {i: lwcc.allreduce_async(np.full(3, i), op=lwcc.Sum, name=names[i]) for i in order}
    assert all(tickets[i].wait()[0] == size * i for i in tickets)
""",
        env={"LWCC_STALL_ABORT": "20", "LWCC_CACHE_CAPACITY": "1000"},
    )
