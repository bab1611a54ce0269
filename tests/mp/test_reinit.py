"""init after shutdown, in any pace of the ranks."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize("n", [2, 4])
def test_init_after_shutdown(run_ranks: Any, n: int) -> None:
    run_ranks(
        n,
        """
for turn in range(5):
    assert lwcc.allreduce(np.full(4, turn), op=lwcc.Sum, name="t").tolist() == [turn * size] * 4
    try:
        pending = lwcc.allreduce_async(np.ones(3), name=f"only here {rank}")
    except lwcc.ShutDown as error:  # somebody has left before
        assert "has left" in str(error), error
        pending = None
    lwcc.shutdown()
    assert not lwcc.is_initialized()
    try:
        if pending is not None:
            pending.wait()
            raise SystemExit("no exception")
    except lwcc.ShutDown:
        pass
    lwcc.init()
    assert (lwcc.rank(), lwcc.size()) == (rank, size)
""",
    )


def test_a_peer_that_left_is_no_death(run_ranks: Any) -> None:
    run_ranks(
        2,
        """
lwcc.barrier()
if rank == 0:
    lwcc.shutdown()
else:
    try:
        lwcc.allreduce(np.ones(3), name="alone now")
        raise SystemExit("no exception")
    except lwcc.ShutDown as error:
        assert "0" in str(error), error
""",
    )


def test_calls_after_shutdown_fail_and_do_not_hang(run_ranks: Any) -> None:
    run_ranks(
        2,
        """
lwcc.barrier()
lwcc.shutdown()
for call in (lambda: lwcc.allreduce(np.ones(3)), lambda: lwcc.raw.barrier(), lwcc.stats, lambda: lwcc.barrier()):
    try:
        call()
        raise SystemExit("no exception")
    except (lwcc.ShutDown, ValueError):
        pass
""",
    )


def test_forked_children_neither_use_nor_close_the_parents_job(run_ranks: Any) -> None:
    run_ranks(
        2,
        """
import os, sys
def child():
    pid = os.fork()
    if pid == 0:
        try:
            lwcc.allreduce(np.ones(3), name="in the child")
            os._exit(1)
        except (lwcc.LwccError, ValueError):
            pass
        sys.exit(0)
    return os.waitpid(pid, 0)[1]
for turn in range(3):
    assert lwcc.allreduce(np.ones(1000), op=lwcc.Sum, name="t")[0] == size
    assert child() == 0
assert lwcc.allreduce(np.ones(1000), op=lwcc.Sum, name="t")[0] == size
""",
    )


def test_settings_of_some_ranks_only_are_refused_and_the_job_can_start_again(run_ranks: Any) -> None:
    done = run_ranks(
        3,
        """
import os
lwcc.shutdown()
for name, value in (("LWCC_ALGORITHM", "allreduce=ring"), ("LWCC_COST", "1e-6,1e-9,1e-10")):
    if rank == 2:
        os.environ[name] = value
    try:
        lwcc.init()
        raise SystemExit("no exception")
    except lwcc.Mismatch as error:
        text = str(error)
        assert all(word in text for word in (name, "rank 0", "rank 2", value)), text
    assert not lwcc.is_initialized()
    os.environ.pop(name, None)
lwcc.init()
assert lwcc.allreduce(np.ones(3), op=lwcc.Sum, name="after").tolist() == [3, 3, 3]
print("ALIKE AGAIN", rank)
""",
    )
    assert done.out.count("ALIKE AGAIN") == 3
