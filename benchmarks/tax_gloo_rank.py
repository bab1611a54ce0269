"""One rank of bench_tax.py --engine gloo: torch.distributed called directly and through the engine `gloo`, in turn.

Each call begins behind the core's barrier; a row has the medians of the longest time over the ranks. Rank 0 prints.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any

import numpy as np
import torch

import lwcc
from lwcc import bench_rank, ops, raw
from lwcc._native import lib

WARM = 10
dist: Any = importlib.import_module("torch.distributed")


def make_group(folder: str) -> Any:
    """Make a group of torch.distributed, over the interface that the engine takes."""
    store = dist.FileStore(os.path.join(folder, "meet"), lwcc.size())
    return dist.ProcessGroupGloo(store, lwcc.rank(), lwcc.size())


def times(group: Any, case: bench_rank.Case, iterations: int) -> np.ndarray:
    """Return seconds, direct in row 0 and by the engine in row 1."""
    series = bench_rank.Series("allreduce", [], in_place=True)
    nothing = bench_rank.make(series, 4)
    tensor = torch.from_numpy(case.output)
    seconds = np.zeros((2, iterations))
    for i in range(iterations):
        bench_rank.time_loop(series, nothing, lib.LWCC_TIME_FOLD, 1)
        began = time.perf_counter()
        group.allreduce([tensor]).wait()
        seconds[0, i] = time.perf_counter() - began
        seconds[1, i] = bench_rank.time_loop(series, case, ops.ALLREDUCE, 1)[0]
    return raw.allreduce(seconds, op=lwcc.Max)


def main() -> int:
    """Run every size for the budget given."""
    folder, sizes, budget = sys.argv[1], sys.argv[2].split(","), float(sys.argv[3])
    torch.set_num_threads(1)
    lwcc.init()
    group = make_group(folder)
    for size in map(int, sizes):
        case = bench_rank.make(bench_rank.Series("allreduce", [], in_place=True), size)
        each = float(np.median(times(group, case, WARM)))
        iterations = int(min(max(budget / each / 2, 15), 3000))
        direct, engine = times(group, case, iterations)
        if lwcc.rank() == 0:
            row = {"size": size, "direct": float(np.median(direct)), "engine": float(np.median(engine))}
            print(json.dumps({**row, "iterations": iterations}), flush=True)
    lwcc.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
