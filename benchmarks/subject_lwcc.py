"""One rank of LWCC under the benchmark loop; started by bench_allreduce.py through lwccrun."""

from __future__ import annotations

import argparse
import ctypes
import sys

import lwcc
from lwcc._native import ffi, lib

FUNCTIONS = (
    "raw_allreduce", "raw_broadcast", "raw_allgather", "raw_reducescatter", "raw_alltoall", "raw_barrier",
    "submit", "run", "wait", "release", "alloc", "free",
)  # fmt: skip


class Setup(ctypes.Structure):
    """`bench_setup` of c/board.h."""

    _fields_ = [
        ("board", ctypes.c_char_p),
        ("label", ctypes.c_char_p),
        ("rank", ctypes.c_int),
        ("size", ctypes.c_int),
        ("collective", ctypes.c_int),
        ("budget_s", ctypes.c_double),
        ("pin", ctypes.c_int),
    ]


def main() -> int:
    """Run one series and let rank 0 print its rows."""
    parser = argparse.ArgumentParser()
    for name in ("loop", "board", "label", "sizes"):
        parser.add_argument(name)
    parser.add_argument("--collective", type=int, default=0)
    parser.add_argument("--budget", type=float, default=0.1)
    parser.add_argument("--pin", type=int, default=1)
    parser.add_argument("--way", type=int, default=0)
    parser.add_argument("--registered", type=int, default=0)
    a = parser.parse_args()
    lwcc.init()
    table = (ctypes.c_void_p * len(FUNCTIONS))(
        *(int(ffi.cast("uintptr_t", ffi.addressof(lib, f"lwcc_{name}"))) for name in FUNCTIONS)
    )
    setup = Setup(
        a.board.encode(), a.label.encode(), lwcc.rank(), lwcc.size(), a.collective, a.budget, a.pin
    )  # fmt: skip
    loop = ctypes.CDLL(a.loop)
    status = loop.bench_lwcc(ctypes.byref(setup), a.sizes.encode(), a.way, a.registered, ctypes.byref(table))
    lwcc.shutdown()
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
