"""One rank of `lwcc bench`: times raw collectives in a C loop, checks them against float64, prints rows as JSON.

`lwcc.bench` starts it with one JSON argument: a `Series`.
"""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

import numpy as np

from lwcc import buffer, context, inspection, memory, ops, raw
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


def make(series: Series, nbytes: int) -> Case:
    """Allocate the arrays of one size; in place they are the same one where the collective allows it."""
    kind, size = np.dtype(series.dtype), context.size()
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
    return np.zeros(count, kind)


def time_loop(series: Series, case: Case, collective: int, iterations: int) -> Any:
    """Run the loop, each iteration behind a barrier; return this rank's seconds of each."""
    _, code = buffer.target(case.output)
    loop = ffi.new("lwcc_loop *")
    given, output = ffi.from_buffer(case.given), ffi.from_buffer(case.output)
    loop.collective, loop.dtype, loop.op = collective, code, int(ops.Sum)
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
    """What rank gives at these positions: the same on every call, in the element type."""
    if np.dtype(dtype).kind == "f":
        return ((index * 0.37 + rank * 0.61) % 1.0 + 0.25).astype(dtype)
    return ((index + 3 * rank) % 7).astype(dtype)


def expected(series: Series, count: int, index: Any) -> Any:
    """The result of this rank at these positions, in float64. count: as that of the raw call."""
    me, name = context.rank(), series.collective
    if name in ("broadcast", "p2p"):
        return term(0, index, series.dtype).astype(np.float64)
    if name in ("allgather", "alltoall"):
        first = me * count if name == "alltoall" else 0
        return term(index // count, first + index % count, series.dtype).astype(np.float64)
    index = index + me * count if name == "reducescatter" else index
    return sum(term(r, index, series.dtype).astype(np.float64) for r in range(context.size()))


def wrong(series: Series, case: Case, collective: int) -> int:
    """Run once on known terms; return how many elements are off on all ranks together, of those at either end."""
    if series.collective == "barrier":
        return 0
    case.output[...] = 0
    case.given[...] = term(context.rank(), np.arange(case.given.size), series.dtype)
    _loop(series, case, collective, 1)
    index = np.arange(case.output.size)
    index = index if index.size <= 2 * CHECKED else np.r_[index[:CHECKED], index[-CHECKED:]]
    want = expected(series, case.length, index)
    got = case.output[index].astype(np.float64)
    kind = np.dtype(series.dtype)
    slack = np.finfo(kind).eps * context.size() if kind.kind == "f" else 0.0
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
    fold = np.median(_loop(series, Case(np.zeros(case.length, series.dtype), case.output, case.length),
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
                "fold_nbytes": case.length * np.dtype(series.dtype).itemsize,
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
