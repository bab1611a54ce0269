"""64 ranks on one machine: they start, and every collective is right."""

from __future__ import annotations

from typing import Any

CASES = """
import numpy as np, lwcc
def same(got, wanted, what):
    assert np.array_equal(np.asarray(got), np.asarray(wanted)), (what, got, wanted)
n, r = size, rank
assert (n, lwcc.local_size(), lwcc.cross_size()) == (64, 64, 1)
for count in (1, 1000, 65537):
    mine = np.arange(count, dtype=np.int64) + r
    total = np.arange(count, dtype=np.int64) * n + n * (n - 1) // 2
    same(lwcc.allreduce(mine, op=lwcc.Sum, name=f"s{count}"), total, "allreduce")
    same(lwcc.allreduce(mine, op=lwcc.Max, name=f"m{count}"), np.arange(count) + n - 1, "max")
    same(lwcc.broadcast(mine, root_rank=n - 1, name=f"b{count}"), np.arange(count) + n - 1, "broadcast")
ragged = np.full((r % 3 + 1, 5), r, dtype=np.float32)
wanted = np.concatenate([np.full((k % 3 + 1, 5), k, dtype=np.float32) for k in range(n)])
same(lwcc.allgather(ragged, name="g"), wanted, "allgather")
rows = np.arange(n * 3, dtype=np.float64).reshape(n, 3) * (r + 1)
same(lwcc.reducescatter(rows, op=lwcc.Sum, name="rs"), rows[r : r + 1] / (r + 1) * (n * (n + 1) / 2), "reducescatter")
sent = np.arange(n, dtype=np.int32) * 1000 + r
got = lwcc.alltoall(sent, name="a")
same(got[0] if isinstance(got, tuple) else got, np.arange(n) + 1000 * r, "alltoall")
evens = lwcc.add_process_set(list(range(0, n, 2)))
if r % 2 == 0:
    same(lwcc.allreduce(np.array([r]), op=lwcc.Sum, name="e", process_set=evens), [n * (n - 2) // 4], "set")
lwcc.barrier()
import os
os.write(1, b"right\\n")
"""


def test_64_ranks_start_and_every_collective_is_right(run_ranks: Any) -> None:
    done = run_ranks(64, CASES, timeout=120)
    assert done.out.count("right") == 64
