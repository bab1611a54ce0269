"""One rank of `lwcc bench`: times raw collectives in a C loop, checks them against float64, prints rows as JSON.

`lwcc.bench` starts it with one JSON argument: a `Series`.
"""

from __future__ import annotations

import json
import mmap
import sys
from typing import Any, NamedTuple

import numpy as np

from lwcc import context, dtypes, inspection, memory, ops, raw
from lwcc._native import ffi, lib

COLLECTIVES = (*ops.COLLECTIVE_NAMES, "p2p")
CHECKED = 1 << 19  # elements compared at either end of a result
_WARM_S = 0.02


class Series(NamedTuple):
    """What to measure. sizes: bytes of the larger of input and output; algorithms: "" is the library's choice."""

    collective: str
    sizes: list[int]
    dtype: str = "float32"
    algorithms: list[str] = [""]
    in_place: bool = False
    registered: bool = False
    budget_s: float = 0.1
    most: int = 2000


class Case(NamedTuple):
    """The memory of one size. length: elements, as the count of the raw call."""

    given: Any
    output: Any
    length: int


def storage(dtype: str) -> Any:
    """Return numpy's type of an element in memory: bfloat16 is kept as uint16."""
    return np.dtype(np.uint16 if dtype == "bfloat16" else dtype)


def make(series: Series, nbytes: int) -> Case:
    """Allocate the arrays of one size; in place they are the same one where the collective allows it."""
    kind, size = storage(series.dtype), context.size()
    total = max(1, nbytes // kind.itemsize)
    per_rank = series.collective in ("allgather", "reducescatter", "alltoall")
    count = max(1, total // size) if per_rank else total
    new = memory.empty if series.registered else _private
    inputs = count * size if series.collective in ("reducescatter", "alltoall") else count
    outputs = count * size if series.collective in ("allgather", "alltoall") else count
    output = new(outputs, kind)
    same = series.collective in ("broadcast", "p2p") or (series.in_place and inputs == outputs)
    return Case(output if same else new(inputs, kind), output, count)


def _private(count: int, kind: Any) -> Any:
    """Zeros on pages of their own, as the benchmarks in C have them; numpy's begin anywhere, some on huge pages."""
    return np.frombuffer(mmap.mmap(-1, count * kind.itemsize, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), kind)


def time_loop(series: Series, case: Case, collective: int, iterations: int) -> Any:
    """Run the loop, each iteration behind a barrier; return this rank's seconds of each."""
    loop = ffi.new("lwcc_loop *")
    given, output = ffi.from_buffer(case.given), ffi.from_buffer(case.output)
    loop.collective, loop.dtype, loop.op = collective, dtypes.CODES[series.dtype], int(ops.Sum)
    loop.input, loop.output, loop.count, loop.iterations = given, output, case.length, iterations
    seconds = np.zeros(iterations)
    status = lib.lwcc_time_loop(loop, ffi.cast("double *", ffi.from_buffer(seconds)))
    if status < 0:
        raise context.failure(status)
    return seconds


def _loop(series: Series, case: Case, collective: int, iterations: int) -> Any:
    """Run the loop; return the seconds of each iteration: the longest over the ranks."""
    return raw.allreduce(time_loop(series, case, collective, iterations), op=ops.Max)


def term(rank: Any, index: Any, dtype: str) -> Any:
    """What rank gives at these positions: the same on every call, as it stands in memory."""
    if "float" not in dtype:
        return ((index + 3 * rank) % 7).astype(dtype)
    value = (index * 0.37 + rank * 0.61) % 1.0 + 0.25
    if dtype != "bfloat16":
        return value.astype(dtype)
    bits = value.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def number(array: Any, dtype: str) -> Any:
    """What stands in memory, in float64."""
    if dtype == "bfloat16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def expected(series: Series, count: int, index: Any) -> Any:
    """The result of this rank at these positions, in float64. count: as that of the raw call."""
    me, name, dtype = context.rank(), series.collective, series.dtype
    if name in ("broadcast", "p2p"):
        return number(term(0, index, dtype), dtype)
    if name in ("allgather", "alltoall"):
        first = me * count if name == "alltoall" else 0
        return number(term(index // count, first + index % count, dtype), dtype)
    index = index + me * count if name == "reducescatter" else index
    total = sum(number(term(r, index, dtype), dtype) for r in range(context.size()))
    return total if "float" in dtype else total.astype(np.int64).astype(dtype).astype(np.float64)  # wraps; bool: or


def wrong(series: Series, case: Case, collective: int) -> int:
    """Run once on known terms; return how many elements are off on all ranks together, of those at either end."""
    if series.collective == "barrier":
        return 0
    case.output[...] = 0
    case.given[...] = term(context.rank(), np.arange(case.given.size), series.dtype)
    _loop(series, case, collective, 1)
    size = case.output.size
    index = np.arange(size) if size <= 2 * CHECKED else np.r_[0:CHECKED, size - CHECKED : size]
    want = expected(series, case.length, index)
    got = number(case.output[index], series.dtype)
    eps = 2.0**-7 if series.dtype == "bfloat16" else np.finfo(series.dtype).eps if "float" in series.dtype else 0.0
    slack = eps * context.size()
    bad = np.count_nonzero(~(np.abs(got - want) <= slack * np.abs(want)))
    return int(raw.allreduce(np.array([bad], np.int64))[0])


def _time(series: Series, case: Case, collective: int) -> Any:
    case.given[...] = 0  # sums stay finite over many calls
    each = float(_loop(series, case, collective, 3).min())
    warm = int(min(max(_WARM_S / max(each, 1e-9), 1), 200))
    each = float(np.median(_loop(series, case, collective, warm)))
    iterations = int(min(max(series.budget_s / max(each, 1e-9), 7), series.most))
    return _loop(series, case, collective, iterations)


def measure(series: Series, nbytes: int) -> list[dict[str, Any]]:
    """Return a row for each algorithm, timed in turn."""
    collective = COLLECTIVES.index(series.collective)
    case = make(series, nbytes)
    rows = []
    fold = np.median(_loop(series, Case(np.zeros(case.length, storage(series.dtype)), case.output, case.length),
                           lib.LWCC_TIME_FOLD, 7)) if case.output.nbytes else 0.0  # fmt: skip
    for algorithm in series.algorithms:
        forced = "broadcast" if series.collective == "p2p" else series.collective
        raw.force_algorithm(forced, algorithm or None)
        bad = wrong(series, case, collective)
        seconds = np.sort(_time(series, case, collective))
        bad += wrong(series, case, collective)
        rows.append(
            {
                "size": 0 if series.collective == "barrier" else int(max(case.given.nbytes, case.output.nbytes)),
                "count": case.length, "algorithm": algorithm, "iterations": len(seconds),
                "t_med": float(np.median(seconds)), "t_p99": float(seconds[int(0.99 * (len(seconds) - 1))]),
                "cv": float(seconds.std() / seconds.mean()), "wrong": bad, "t_fold": float(fold),
                "fold_nbytes": case.length * storage(series.dtype).itemsize,
            }
        )  # fmt: skip
    return rows


def main() -> int:
    """Measure everything; rank 0 prints one JSON line for each row."""
    series = Series(**json.loads(sys.argv[1]))
    context.init()
    if series.collective == "p2p" and context.size() != 2:
        raise ValueError("lwcc bench p2p: a message goes from rank 0 to rank 1, so -np must be 2")
    shared = inspection.stats()["shared_memory"]
    for nbytes in series.sizes:
        for row in measure(series, nbytes):
            if context.rank() == 0:
                print(json.dumps({**row, "shared_memory": shared}), flush=True)
    context.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
