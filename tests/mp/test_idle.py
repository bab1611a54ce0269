"""Ranks without work cost nothing."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize("wire", ["auto", "tcp", "ucx-tcp", "ucx-shm"])
def test_idle_ranks_use_no_cpu(run_ranks: Any, wires: Any, wire: str) -> None:
    done = run_ranks(
        3,
        """
import threading, time
lwcc.allreduce(np.ones(1000), name="work first")
lwcc.barrier()
cpu, wall = time.process_time(), time.monotonic()
threading.Event().wait(2.0)
used = (time.process_time() - cpu) / (time.monotonic() - wall)
print(f"idle share {used:.5f}")
lwcc.barrier()
assert used < 0.005, f"rank {rank}: {100 * used:.2f} % of a core while idle"
""",
        env=wires(wire),
    )
    assert done.out.count("idle share") == 3


def test_a_rank_that_waits_for_a_late_one_sleeps(run_ranks: Any) -> None:
    run_ranks(
        2,
        """
import threading, time
lwcc.barrier()
if rank == 0:
    cpu, wall = time.process_time(), time.monotonic()
    lwcc.allreduce(np.ones(3), name="late")
    used = (time.process_time() - cpu) / (time.monotonic() - wall)
    assert used < 0.05, f"{100 * used:.2f} % of a core while waiting"
else:
    threading.Event().wait(1.5)
    lwcc.allreduce(np.ones(3), name="late")
""",
    )
