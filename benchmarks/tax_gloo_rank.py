"""One rank of bench_tax.py --engine gloo: torch.distributed called directly and through the engine `gloo`, in turn.

A direct call begins behind Gloo's barrier, one by the engine behind the core's, as in `lwcc bench`. A row has the
medians of the longest time over the ranks. Rank 0 prints.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from functools import partial
from typing import Any

import numpy as np
import tax_rank
import torch

import lwcc
from lwcc import bench_rank, ops, raw

dist: Any = importlib.import_module("torch.distributed")


def make_group(folder: str) -> Any:
    """Make a group of torch.distributed, over the interface that the engine takes."""
    store = dist.FileStore(os.path.join(folder, "meet"), lwcc.size())
    return dist.ProcessGroupGloo(store, lwcc.rank(), lwcc.size())


def gloo_times(group: Any, data: np.ndarray, iterations: int) -> np.ndarray:
    """Return seconds, direct in row 0 and by the engine in row 1; of the slowest rank."""
    series = bench_rank.Series("allreduce", [], in_place=True)
    case = bench_rank.Case(data, data, data.size)
    tensor = torch.from_numpy(data)
    seconds = np.zeros((2, iterations))
    for i in range(iterations):
        group.barrier().wait()
        began = time.perf_counter()
        group.allreduce([tensor]).wait()
        seconds[0, i] = time.perf_counter() - began
        group.barrier().wait()  # who is ready sleeps, and leaves his core to those who are not
        seconds[1, i] = bench_rank.time_loop(series, case, ops.ALLREDUCE, 1)[0]
    return raw.allreduce(seconds, op=lwcc.Max)


def main() -> int:
    """Measure torch.distributed."""
    folder, sizes, budget = sys.argv[1:]
    torch.set_num_threads(1)
    lwcc.init()
    tax_rank.run(partial(gloo_times, make_group(folder)), sizes, float(budget))
    lwcc.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
