"""Ranks that disagree: an exception on every rank, which names tensor and ranks, and the job goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

CASES = {
    "dtype": 'lwcc.allreduce(np.zeros(4, np.float64 if rank == last else np.float32), name="t")',
    "shape": 'lwcc.allreduce(np.zeros(5 if rank == last else 4), name="t")',
    "dimensions": 'lwcc.allreduce(np.zeros((2, 2) if rank == last else 4), name="t")',
    "op": 'lwcc.allreduce(np.zeros(4), op=lwcc.Max if rank == last else lwcc.Sum, name="t")',
    "root": 'lwcc.broadcast(np.zeros(4), 1 if rank == last else 0, name="t")',
    "scale": 'lwcc.allreduce(np.zeros(4), prescale_factor=2.0 if rank == last else 1.0, name="t")',
    "tail": 'lwcc.allgather(np.zeros((rank, 3 if rank == last else 2)), name="t")',
}


@pytest.mark.parametrize("what", CASES)
@pytest.mark.parametrize("n", [2, 4])
def test_a_mismatch_reaches_every_rank_and_the_job_goes_on(run_ranks: Any, what: str, n: int) -> None:
    done = run_ranks(
        n,
        f"""
last = size - 1
for turn in range(2):
    try:
        {CASES[what]}
        raise SystemExit("no exception")
    except lwcc.Mismatch as error:
        text = str(error)
        assert '"t"' in text or "'t'" in text or " t " in text, text
        assert str(last) in text, text
        assert error.code < 0 and error.status == "MISMATCH"
    out = lwcc.allreduce(np.full(3, rank), op=lwcc.Sum, name="after")
    assert out.tolist() == [size * (size - 1) // 2] * 3, out
    out = lwcc.allreduce(np.ones(4), op=lwcc.Sum, name="t")
    assert out.tolist() == [size] * 4, out
print("MISMATCH SEEN", rank)
""",
    )
    assert done.out.count("MISMATCH SEEN") == n


def test_other_requests_are_not_touched_by_a_mismatch(run_ranks: Any) -> None:
    run_ranks(
        3,
        """
good = [lwcc.allreduce_async(np.full(9, i), op=lwcc.Sum, name=f"good{i}") for i in range(5)]
bad = lwcc.allreduce_async(np.zeros(4 + rank), name="bad")
more = [lwcc.allreduce_async(np.full(9, i), op=lwcc.Sum, name=f"more{i}") for i in range(5)]
for tickets in (more, good):
    for i, ticket in enumerate(tickets):
        assert ticket.wait().tolist() == [i * size] * 9
try:
    bad.wait()
    raise SystemExit("no exception")
except lwcc.Mismatch:
    pass
""",
    )


def test_a_mismatch_in_a_group_fails_the_group(run_ranks: Any) -> None:
    run_ranks(
        2,
        """
group = lwcc.grouped_allreduce_async([np.zeros(3), np.zeros(3 + rank)], name="g")
for ticket in group.tickets:
    try:
        ticket.wait()
        raise SystemExit("no exception")
    except lwcc.Mismatch:
        pass
assert lwcc.allreduce(np.ones(2), op=lwcc.Sum).tolist() == [2, 2]
""",
    )


def test_groups_of_different_members_fail_at_once_on_every_rank(run_ranks: Any) -> None:
    run_ranks(
        3,
        """
for turn in range(3):
    for sizes in ((3, 2, 2), (2, 3, 3), (5, 4, 3)):
        try:
            lwcc.grouped_allreduce([np.zeros(2)] * sizes[rank], name="g")
            raise SystemExit("no exception")
        except lwcc.Mismatch as error:
            assert "in a group of" in str(error), error
    assert [a[0] for a in lwcc.grouped_allreduce([np.ones(2)] * 4, op=lwcc.Sum, name="g")] == [3] * 4
""",
        env={"LWCC_STALL_ABORT": "0"},
    )


def test_rows_of_all_ranks_that_no_memory_can_hold_fail_the_call_and_not_the_job(run_ranks: Any) -> None:
    run_ranks(
        2,
        """
from lwcc import dtypes, ops
for turn in range(2):
    ticket = ops.submit_pointer("big", ops.ALLGATHER, 0, 0, (2**63 - 1, 0), dtypes.CODES["uint8"])
    try:
        ops.wait(ticket)
        raise SystemExit("no exception")
    except ValueError as error:
        assert '"big": too large' in str(error), error
    ops.release(ticket)
    assert lwcc.allgather(np.ones((3, 2)), name="big").shape == (6, 2)
""",
    )


def test_ranks_that_add_different_process_sets_all_hear_it_at_once(run_ranks: Any) -> None:
    run_ranks(
        3,
        """
for turn in range(2):
    try:
        lwcc.add_process_set([0, 1] if rank == 0 else [0, 2])
        raise SystemExit("no exception")
    except lwcc.Mismatch as error:
        assert "rank 0 asks for [0, 1]; rank 1, 2 ask for [0, 2]" in str(error), error
two = lwcc.add_process_set([0, 1])
if rank < 2:
    assert lwcc.allreduce(np.ones(1), op=lwcc.Sum, process_set=two)[0] == 2
""",
        env={"LWCC_STALL_ABORT": "0"},
    )


def test_an_object_that_cannot_be_pickled_is_an_exception_on_every_rank(run_ranks: Any) -> None:
    run_ranks(
        3,
        """
for turn in range(2):
    bad = (x for x in [1]) if rank == 1 else rank
    for call in (lambda: lwcc.broadcast_object(bad, 1), lambda: lwcc.allgather_object(bad)):
        try:
            call()
            raise SystemExit("no exception")
        except TypeError as error:
            assert rank == 1 and "generator" in str(error)
        except ValueError as error:
            assert rank != 1 and "rank 1 cannot pickle" in str(error) and "generator" in str(error), error
    assert lwcc.broadcast_object({"a": rank}, 1) == {"a": 1}
    assert lwcc.allgather_object([rank]) == [[0], [1], [2]]
""",
        env={"LWCC_STALL_ABORT": "0"},
    )


def test_a_changed_shape_under_an_old_name_is_no_mismatch(run_ranks: Any) -> None:
    run_ranks(
        3,
        """
for turn in range(12):
    count = 3 + turn % 3
    assert lwcc.allreduce(np.ones(count), op=lwcc.Sum, name="t").tolist() == [size] * count
    assert lwcc.broadcast(np.full(count, rank), turn % size, name="t").tolist() == [turn % size] * count
""",
    )


def test_a_name_pending_twice_is_a_value_error_of_the_call(run_ranks: Any) -> None:
    run_ranks(
        2,
        """
import threading
if rank == 0:
    first = lwcc.allreduce_async(np.ones(3), op=lwcc.Sum, name="twice")
    try:
        lwcc.allreduce_async(np.ones(3), op=lwcc.Sum, name="twice")
        raise SystemExit("no exception")
    except ValueError as error:
        assert "twice" in str(error)
    lwcc.barrier()
    assert first.wait().tolist() == [2, 2, 2]
else:
    lwcc.barrier()
    assert lwcc.allreduce(np.ones(3), op=lwcc.Sum, name="twice").tolist() == [2, 2, 2]
""",
    )


def test_a_stall_names_tensor_and_missing_ranks_and_the_job_goes_on(run_ranks: Any, tmp_path: Path) -> None:
    run_ranks(
        3,
        f"""
import threading, time
from pathlib import Path
seen = [Path({str(tmp_path)!r}) / f"seen{{r}}" for r in range(size)]
if rank == 1:
    deadline = time.monotonic() + 30
    while not (seen[0].exists() and seen[2].exists()):
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)
else:
    try:
        lwcc.allreduce(np.ones(3), name="gradient")
        raise SystemExit("no exception")
    except lwcc.Timeout as error:
        assert "gradient" in str(error) and "rank 1" in str(error), error
    seen[rank].touch()
assert lwcc.allreduce(np.ones(3), op=lwcc.Sum, name="after").tolist() == [3, 3, 3]
assert lwcc.allreduce(np.ones(3), op=lwcc.Sum, name="gradient").tolist() == [3, 3, 3]
""",
        env={"LWCC_STALL_WARN": "0.3", "LWCC_STALL_ABORT": "1"},
    )
