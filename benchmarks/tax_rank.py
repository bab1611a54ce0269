"""One rank of bench_tax.py: MPI called directly and through the engine `mpi`, in turn; rank 0 prints rows as JSON."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from functools import partial

import numpy as np

import lwcc
from lwcc import dtypes
from lwcc._native import ffi, lib

WARM = 20


class Tax(ctypes.Structure):
    """`tax` of c/tax.c."""

    _fields_ = [
        ("engine", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("op", ctypes.c_int32),
        ("data", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("iterations", ctypes.c_int32),
    ]


def mpi_times(loop: ctypes.CDLL, data: np.ndarray, iterations: int) -> np.ndarray:
    """Return seconds, direct in row 0 and by the engine in row 1."""
    seconds = np.zeros((2, iterations))
    engine = int(ffi.cast("uintptr_t", ffi.addressof(lib, "lwcc_raw_allreduce")))
    tax = Tax(engine, dtypes.code_of(data.dtype), int(lwcc.Sum), data.ctypes.data, data.size, iterations)
    if loop.tax_loop(ctypes.byref(tax), seconds.ctypes.data_as(ctypes.c_void_p)):
        raise RuntimeError("a call failed")
    return seconds


def run(times: Callable[[np.ndarray, int], np.ndarray], sizes: str, budget_s: float) -> None:
    """Time every size (bytes, separated by commas) for the budget given; times(data, iterations): direct, by engine."""
    for size in map(int, sizes.split(",")):
        data = np.zeros(size // 4, np.float32)
        each = float(np.median(times(data, WARM)))
        iterations = int(min(max(budget_s / each / 2, 15), 3000))
        direct, engine = times(data, iterations)
        if lwcc.rank() == 0:
            row = {"size": size, "direct": float(np.median(direct)), "engine": float(np.median(engine))}
            print(json.dumps({**row, "iterations": iterations}), flush=True)


def main() -> int:
    """Measure MPI."""
    path, sizes, budget = sys.argv[1:]
    lwcc.init()
    run(partial(mpi_times, ctypes.CDLL(path)), sizes, float(budget))
    lwcc.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
