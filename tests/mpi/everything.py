"""One rank that tries every collective of the engine named by LWCC_ENGINE against numpy; the last rank says ok."""

from __future__ import annotations

import os
from functools import reduce
from typing import Any

if os.environ.get("TEST_MPI_FIRST"):  # the script itself starts MPI, at the level given
    import mpi4py

    mpi4py.rc.thread_level = os.environ["TEST_MPI_FIRST"]
    from mpi4py import MPI
import numpy as np

import lwcc
from lwcc import raw

FOLDS = {lwcc.Sum: np.add, lwcc.Min: np.minimum, lwcc.Max: np.maximum, lwcc.Product: np.multiply}
GLOO = os.environ.get("LWCC_ENGINE") == "gloo"
NAMES = ["uint8", "int8", "int32", "int64", "bool", "float16", "float32", "float64"]
if not GLOO:
    NAMES += ["uint16", "int16", "uint32", "uint64"]


def of(r: int, shape: Any, name: str = "float32") -> Any:
    """The array of rank r: small whole numbers, so that every element type adds them exactly."""
    return np.random.default_rng([7, r]).integers(0, 2 if name == "bool" else 4, shape).astype(name)


def check(got: Any, want: Any, what: Any) -> None:
    got, want = np.asarray(got).astype(np.float64), np.asarray(want).astype(np.float64)
    assert got.shape == want.shape and np.array_equal(got, want), (rank, what, got.ravel()[:8], want.ravel()[:8])


def reductions() -> None:
    for name in NAMES:
        for op, fold in FOLDS.items():
            for shape in [(), (5,), (33, 7)]:
                want = reduce(fold, [of(r, shape, name).astype(np.float64) for r in range(size)])
                want = np.minimum(want, 1) if name == "bool" else want
                check(lwcc.allreduce(of(rank, shape, name), op=op), want, (name, op, shape))
    total = sum(of(r, 100) for r in range(size))
    a = of(rank, 100)
    check(lwcc.allreduce(a, op=lwcc.Sum, prescale_factor=0.5, postscale_factor=4.0), 2 * total, "scales")
    assert lwcc.allreduce_(a, op=lwcc.Sum) is a
    check(a, total, "in place")
    check(lwcc.allreduce(np.full(6, rank, np.int32)), np.full(6, (size - 1) // 2), "average of whole numbers")
    handles = [lwcc.allreduce_async(of(rank, 50 + i), op=lwcc.Sum, name=f"many.{i}") for i in range(40)]
    for i, handle in enumerate(handles):
        check(handle.wait(), sum(of(r, 50 + i) for r in range(size)), "many")


def blocks() -> None:
    for rows in (size, 2 * size + 1, 1):
        whole = sum(of(r, (rows, 3)) for r in range(size))
        base, more = divmod(rows, size)
        start = rank * base + min(rank, more)
        check(lwcc.reducescatter(of(rank, (rows, 3)), op=lwcc.Sum), whole[start : start + base + (rank < more)], rows)
    for per_rank in (lambda r: 2, lambda r: r, lambda r: 3 if r == 0 else 0):
        parts = [of(r, (per_rank(r), 3)) for r in range(size)]
        check(lwcc.allgather(parts[rank]), np.concatenate(parts), "allgather")
        splits = [per_rank((rank + r) % size) for r in range(size)]
        given = np.repeat(np.arange(size, dtype=np.float32), splits) + 10 * rank
        got, received = lwcc.alltoall(given, splits)
        back = [per_rank((rank + r) % size) for r in range(size)]
        check(received, back, "received splits")
        check(got, np.repeat(10 * np.arange(size, dtype=np.float32), back) + rank, "alltoall")
    for root in range(size):
        check(lwcc.broadcast(of(rank, 1000), root), of(root, 1000), "broadcast")
    lwcc.barrier()


def raws() -> None:
    check(raw.allreduce(of(rank, 1000)), sum(of(r, 1000) for r in range(size)), "raw allreduce")
    check(raw.broadcast(of(rank, 9), size - 1), of(size - 1, 9), "raw broadcast")
    check(raw.allgather(of(rank, 9)), [of(r, 9) for r in range(size)], "raw allgather")
    check(raw.reducescatter(of(rank, (size, 9))), sum(of(r, (size, 9)) for r in range(size))[rank], "raw reducescatter")
    check(raw.alltoall(of(rank, (size, 9))), [of(r, (size, 9))[rank] for r in range(size)], "raw alltoall")
    raw.barrier()


def sets() -> None:
    first = lwcc.add_process_set(list(range(size - 1)))
    last = lwcc.add_process_set([0, size - 1])
    if rank < size - 1:
        want = sum(of(r, 40) for r in range(size - 1))
        check(lwcc.allreduce(of(rank, 40), op=lwcc.Sum, process_set=first), want, "set")
        check(raw.allreduce(of(rank, 40), process_set=first), want, "raw set")
    if rank in (0, size - 1):
        check(lwcc.allgather(of(rank, (1, 4)), process_set=last), [of(0, 4), of(size - 1, 4)], "set of two")
    lwcc.remove_process_set(last)


def disagreement() -> None:
    try:
        lwcc.allreduce(np.zeros(3 + rank, np.float32), op=lwcc.Sum, name="odd")
    except lwcc.Mismatch:
        return
    raise SystemExit("a disagreement was not noticed")


for _round in range(2):  # a second init finds the same MPI
    lwcc.init()
    rank, size = lwcc.rank(), lwcc.size()
    for part in (reductions, blocks, raws, disagreement):
        part()
    if size > 2:
        sets()
    stats = lwcc.stats()
    assert stats["engine"] == (2 if GLOO else 1), stats
    assert sum(stats["allreduces"]) > 20, stats
    lwcc.shutdown()
print(f"ok from rank {rank} of {size}\n", end="", flush=True)
if os.environ.get("TEST_MPI_FIRST"):
    MPI.Finalize()
