"""One rank of `lwcc check`: an algorithm on real data, compared with what numpy says. Started by `lwcc.checking`."""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import sys
import time
from typing import Any

import numpy as np

import lwcc
from lwcc.authoring import find
from lwcc.dtypes import NAMES
from lwcc.errors import LwccError, Mismatch, PeerLost

_SEED = 20261130
_OTHER_PLANS = "; the ranks built different plans, which may depend on rank, size and nodes alone"
_count = itertools.count()


class Wrong(Exception):
    """What differs, for the report."""


def lengths(size: int) -> list[int]:
    """Return numbers of elements: none, fewer than ranks, odd, more than one piece of the executor."""
    return sorted({0, 1, 2, size - 1, size, size + 1, 7, 1001, 65_537})


def pattern(dtype: str, rank: int, count: int) -> Any:
    """Return small whole numbers, which every type holds and adds exactly; a bfloat16 array comes as float32."""
    values = (np.arange(count) * 7 + rank * 3) % 4
    return values.astype("float32" if dtype == "bfloat16" else dtype)


def packed(array: Any, dtype: str) -> Any:
    """Return the array as it travels: bfloat16 as uint16, the upper half of each float32."""
    return (array.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else array


def unpacked(array: Any, dtype: str) -> Any:
    """Undo `packed`."""
    return (array.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else array


def compare(got: Any, wanted: Any, what: str) -> None:
    """Raise `Wrong` with the first element that differs."""
    if got.shape != wanted.shape:
        raise Wrong(f"{what}: shape {got.shape}, should be {wanted.shape}")
    bad = np.flatnonzero(~((got == wanted) | ((got != got) & (wanted != wanted))))
    if bad.size:
        i = int(bad[0])
        text = f"element {i} is {got.reshape(-1)[i]}, should be {wanted.reshape(-1)[i]} ({bad.size} differ)"
        raise Wrong(f"{what}: {text}")


class Trial:
    """The calls of one collective with one algorithm."""

    def __init__(self, algorithm: Any, collective: str) -> None:
        self.algorithm, self.collective = algorithm, collective
        self.rank, self.size = lwcc.rank(), lwcc.size()

    def call(self, function: Any, array: Any, *args: Any, dtype: str = "", **keywords: Any) -> Any:
        """Run a collective by name with the algorithm."""
        told = "bfloat16" if dtype == "bfloat16" else None
        name = f"trial.{next(_count)}"
        out = function(packed(array, dtype), *args, name=name, dtype=told, algorithm=self.algorithm, **keywords)
        return unpacked(out, dtype)

    def allreduce(self, dtype: str, count: int) -> None:
        """Compare sum, least and greatest over the ranks."""
        all_ranks = [pattern(dtype, rank, count) for rank in range(self.size)]
        total = sum(all_ranks[1:], all_ranks[0]).astype(all_ranks[0].dtype)
        for op, wanted in (
            ("Sum", total),
            ("Min", np.minimum.reduce(all_ranks)),
            ("Max", np.maximum.reduce(all_ranks)),
        ):
            got = self.call(lwcc.allreduce, all_ranks[self.rank], dtype=dtype, op=getattr(lwcc, op))
            compare(got, wanted, f"allreduce {dtype}[{count}] {op}")

    def reducescatter(self, dtype: str, count: int) -> None:
        """Compare this rank's part of the sum."""
        all_ranks = [pattern(dtype, rank, count) for rank in range(self.size)]
        total = sum(all_ranks[1:], all_ranks[0]).astype(all_ranks[0].dtype)
        got = self.call(lwcc.reducescatter, all_ranks[self.rank], dtype=dtype, op=lwcc.Sum)
        compare(got, np.array_split(total, self.size)[self.rank], f"reducescatter {dtype}[{count}]")

    def allgather(self, dtype: str, count: int) -> None:
        """Compare blocks of different lengths, some empty."""
        all_ranks = [pattern(dtype, rank, count * ((rank + count) % 3)) for rank in range(self.size)]
        got = self.call(lwcc.allgather, all_ranks[self.rank], dtype=dtype)
        compare(got, np.concatenate(all_ranks), f"allgather {dtype}, blocks of 0 to {2 * count}")

    def alltoall(self, dtype: str, count: int) -> None:
        """Compare blocks whose lengths depend on both ends."""
        rows = [[count * ((a + 2 * b) % 3) // 2 for b in range(self.size)] for a in range(self.size)]
        sent = [np.split(pattern(dtype, a, sum(rows[a])), np.cumsum(rows[a])[:-1]) for a in range(self.size)]
        mine = np.concatenate(sent[self.rank])
        got = self.call(lambda *a, **k: lwcc.alltoall(*a, **k)[0], mine, rows[self.rank], dtype=dtype)
        compare(got, np.concatenate([sent[a][self.rank] for a in range(self.size)]), f"alltoall {dtype} up to {count}")

    def broadcast(self, dtype: str, count: int) -> None:
        """Compare from every root."""
        for root in range(self.size):
            got = self.call(lwcc.broadcast, pattern(dtype, self.rank, count), root, dtype=dtype)
            compare(got, pattern(dtype, root, count), f"broadcast {dtype}[{count}] from {root}")

    def barrier(self) -> None:
        """See that nobody leaves before everybody has come."""
        came = time.monotonic_ns()
        lwcc.barrier(name=f"trial.{next(_count)}", algorithm=self.algorithm)
        times = lwcc.allgather(np.array([came, time.monotonic_ns()]), name=f"trial.{next(_count)}").reshape(-1, 2)
        if times[:, 0].max() > times[:, 1].min():
            raise Wrong(f"barrier: rank {times[:, 1].argmin()} left before rank {times[:, 0].argmax()} came")

    def not_a_number(self) -> None:
        """See that a NaN of any rank reaches the result, and only its own element."""
        for owner in range(self.size):
            data = np.ones(101, np.float32)
            wanted = np.full(101, self.size, np.float32)
            wanted[13 + owner] = np.nan
            if self.rank == owner:
                data[13 + owner] = np.nan
            compare(self.call(lwcc.allreduce, data, op=lwcc.Sum), wanted, f"allreduce with a NaN on rank {owner}")

    def same_bits(self) -> None:
        """See that the same random data give the same bits again, by raw calls too, and on every rank."""
        data = np.random.default_rng(_SEED + self.rank).standard_normal(10_007).astype(np.float32)
        runs = [self.call(lwcc.allreduce, data, op=lwcc.Sum) for _ in range(3)]
        with lwcc.use(self.algorithm, collective="allreduce"):
            runs.append(lwcc.raw.allreduce(data.copy()))
        for again in runs[1:]:
            if again.tobytes() != runs[0].tobytes():
                raise Wrong("allreduce: the same data gave other bits when run again")
        mark = np.frombuffer(hashlib.sha256(runs[0].tobytes()).digest(), np.uint8)
        marks = lwcc.allgather(mark, name=f"trial.{next(_count)}").reshape(self.size, -1)
        other = [rank for rank in range(self.size) if (marks[rank] != marks[0]).any()]
        if other:
            raise Wrong(f"allreduce: ranks {other} have other bits than rank 0")

    def run(self) -> str:
        """Run all; return what was tried."""
        if self.collective == "barrier":
            for _ in range(50):
                self.barrier()
            return "50 barriers"
        for dtype, count in itertools.product(NAMES, lengths(self.size)):
            getattr(self, self.collective)(dtype, count)
        tried = f"{len(NAMES)} element types, {len(lengths(self.size))} lengths"
        if self.collective != "allreduce":
            return tried
        self.not_a_number()
        self.same_bits()
        return tried + ", NaN, same bits in 4 runs and on all ranks"


def main() -> int:
    """Run the trial of `argv` on this rank; return 0 if all was right."""
    parser = argparse.ArgumentParser(prog="lwcc.trial")
    parser.add_argument("spec")
    parser.add_argument("--collective", required=True)
    parser.add_argument("--per-node", type=int, default=0)
    args = parser.parse_args()
    if args.per_node:
        os.environ["LWCC_NODE"] = f"trial{int(os.environ['LWCC_RANK']) // args.per_node}"
    lwcc.init()
    try:
        tried = Trial(find(args.spec, args.collective), args.collective).run()
    except PeerLost:  # it has said why it left
        return 1
    except (Wrong, LwccError, ValueError) as wrong:
        rank, size = os.environ["LWCC_RANK"], os.environ["LWCC_SIZE"]
        print(f"wrong: rank {rank} of {size}: {wrong}{_OTHER_PLANS * isinstance(wrong, Mismatch)}", flush=True)
        return 1
    if lwcc.rank() == 0:
        print(tried, flush=True)
    lwcc.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
