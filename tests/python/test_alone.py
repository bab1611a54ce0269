"""Every operation in a job of one rank, without a launcher."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lwcc
from lwcc import dtypes, memory, ops


def test_a_job_of_one(alone: Any) -> None:
    assert (lwcc.rank(), lwcc.size(), lwcc.local_rank(), lwcc.local_size()) == (0, 1, 0, 1)
    assert (lwcc.cross_rank(), lwcc.cross_size(), lwcc.is_homogeneous()) == (0, 1, True)
    assert lwcc.is_initialized()


def test_before_init_everything_is_a_value_error() -> None:
    assert not lwcc.is_initialized()
    for ask in (lwcc.rank, lwcc.size, lwcc.local_rank, lwcc.local_size, lwcc.cross_rank, lwcc.cross_size):
        with pytest.raises(ValueError, match="not initialised"):
            ask()
    with pytest.raises((ValueError, lwcc.ShutDown)):
        lwcc.allreduce(np.zeros(3))


@pytest.mark.parametrize("name", dtypes.NAMES)
@pytest.mark.parametrize("op", [lwcc.Average, lwcc.Sum, lwcc.Min, lwcc.Max, lwcc.Product])
def test_alone_a_reduction_changes_nothing(alone: Any, name: str, op: int) -> None:
    if name == "bool" and op == lwcc.Average:
        with pytest.raises(ValueError, match="no meaning for bool"):
            lwcc.allreduce(np.ones(3, bool), op=op)
        return
    a = np.array([0, 1, 1, 0, 1], dtypes.numpy_dtype(dtypes.CODES[name]))
    said = "bfloat16" if name == "bfloat16" else None
    out = lwcc.allreduce(a, op=op, dtype=said)
    assert out.dtype == a.dtype
    assert out is not a
    assert np.array_equal(out, a)
    assert lwcc.allreduce_(a, op=op, dtype=said) is a


def test_shapes_are_kept(alone: Any) -> None:
    for shape in ((), (0,), (3, 0, 2), (1,), (2, 3, 4)):
        a = np.ones(shape, np.float32)
        assert lwcc.allreduce(a).shape == shape
        assert lwcc.broadcast(a, 0).shape == shape
    assert lwcc.allreduce(2.5) == 2.5
    assert lwcc.allgather(np.float32(4)).shape == (1,)


def test_scales_multiply(alone: Any) -> None:
    a = np.arange(4, dtype=np.float64)
    out = lwcc.allreduce(a, op=lwcc.Sum, prescale_factor=3.0, postscale_factor=0.5)
    assert out.tolist() == [0, 1.5, 3, 4.5]


def test_transposed_input_is_copied(alone: Any) -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(lwcc.allreduce(a.T), a.T)


def test_the_others_alone(alone: Any) -> None:
    a = np.arange(6, dtype=np.int32).reshape(3, 2)
    for out in (lwcc.allgather(a), lwcc.reducescatter(a, op=lwcc.Sum), lwcc.alltoall(a)):
        assert np.array_equal(out, a)
    out, received = lwcc.alltoall(a, splits=[3])
    assert np.array_equal(out, a)
    assert received.tolist() == [3]
    lwcc.barrier()


def test_asynchronous_calls_are_waited_for_in_any_order(alone: Any) -> None:
    arrays = [np.full(n, n, np.float32) for n in range(1, 20)]
    tickets = [lwcc.allreduce_async(a, name=f"t{len(a)}") for a in arrays]
    for ticket, a in reversed(list(zip(tickets, arrays))):
        assert np.array_equal(ticket.wait(), a)
        assert ticket.done()
        assert ticket.result is ticket.wait()


def test_a_dropped_ticket_keeps_its_memory_until_done(alone: Any) -> None:
    for _ in range(50):
        lwcc.allreduce_async(np.ones(1000), name="dropped").done()
        lwcc.allreduce(np.ones(3), name="next")
        lwcc.barrier()
    gc.collect()
    assert lwcc.allreduce(np.ones(3), name="dropped").tolist() == [1, 1, 1]


def test_a_group_returns_its_members_in_order(alone: Any) -> None:
    arrays = [np.ones(3, np.float32), np.zeros((2, 2), np.int64), np.array(5.0)]
    out = lwcc.grouped_allreduce(arrays, op=lwcc.Sum, name="group")
    assert all(np.array_equal(x, y) for x, y in zip(out, arrays))
    again = lwcc.grouped_allreduce_(arrays)
    assert all(x is y for x, y in zip(again, arrays))
    assert lwcc.grouped_allreduce([]) == []


def test_wrong_arguments_are_value_errors_of_the_call(alone: Any) -> None:
    a = np.ones(4, np.float32)
    with pytest.raises(ValueError):
        lwcc.broadcast(a, 1)
    with pytest.raises(ValueError, match="splits"):
        lwcc.alltoall(a, splits=[3])
    with pytest.raises(ValueError, match="0-d"):
        lwcc.reducescatter(np.array(1.0))
    with pytest.raises(ValueError):
        lwcc.allreduce(a, name="x" * 600)
    with pytest.raises(ValueError):
        lwcc.allreduce(a, op=17)
    with pytest.raises(ValueError, match="not in use"):
        lwcc.allreduce(a, process_set=lwcc.ProcessSet([0]))
    assert lwcc.allreduce(a).tolist() == [1, 1, 1, 1]


def test_raw_calls_alone(alone: Any) -> None:
    a = np.arange(4, dtype=np.float32)
    assert lwcc.raw.allreduce(a) is a
    assert lwcc.raw.allreduce(a, out=np.empty_like(a)).tolist() == [0, 1, 2, 3]
    assert lwcc.raw.allgather(a).shape == (1, 4)
    assert lwcc.raw.reducescatter(a.reshape(1, 4)).tolist() == [0, 1, 2, 3]
    assert lwcc.raw.alltoall(a.reshape(1, 4)).tolist() == [[0, 1, 2, 3]]
    assert lwcc.raw.broadcast(a, 0) is a
    lwcc.raw.barrier()
    with pytest.raises(ValueError, match="number of ranks"):
        lwcc.raw.alltoall(a)


def test_registered_memory_is_an_array(alone: Any) -> None:
    a = lwcc.empty((100, 7), "float32")
    assert a.shape == (100, 7)
    assert not a.any()
    assert not memory.is_registered(np.zeros(4))
    tail = a[50:]
    del a
    gc.collect()
    tail[:] = 1
    assert lwcc.allreduce_(tail, op=lwcc.Sum).sum() == 350
    assert lwcc.empty(0).shape == (0,)


def test_objects_alone(alone: Any) -> None:
    thing = {"a": [1, 2], "b": b"\0" * 1000}
    assert lwcc.broadcast_object(thing) == thing
    assert lwcc.allgather_object(thing) == [thing]


def test_init_again_after_shutdown(alone: Any) -> None:
    ticket = lwcc.allreduce_async(np.ones(3), name="left over")
    lwcc.shutdown()
    assert not lwcc.is_initialized()
    lwcc.shutdown()
    lwcc.init()
    with pytest.raises(lwcc.ShutDown):
        ticket.wait()
    assert lwcc.allreduce(np.ones(3), name="left over").tolist() == [1, 1, 1]


def test_counters_count(alone: Any) -> None:
    before = lwcc.stats()
    lwcc.allreduce(np.ones(100, np.float32), name="counted")
    after = lwcc.stats()
    assert after["requests"] == before["requests"] + 1
    assert after["completed"] == before["completed"] + 1


def test_every_exception_can_be_pickled() -> None:
    again = pickle.loads(pickle.dumps(lwcc.PeerLost("rank 2 died", -3, 2)))
    assert (str(again), again.rank, again.code) == ("rank 2 died", 2, -3)


def test_a_script_without_shutdown_ends_by_itself() -> None:
    code = "import numpy as np, lwcc; lwcc.init(); t = lwcc.allreduce_async(np.ones(9), name='x'); print('end')"
    env = {**os.environ}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_a_forked_child_may_exit_and_the_parent_goes_on(alone: Any) -> None:
    pid = os.fork()
    if pid == 0:
        text = ""
        try:
            lwcc.shutdown()
            lwcc.init()
        except lwcc.ShutDown as error:
            text = str(error)
        finally:
            os._exit(0 if "forked child" in text and not lwcc.is_initialized() else 1)
    _, status = os.waitpid(pid, 0)
    assert status == 0
    assert lwcc.allreduce(np.ones(2)).tolist() == [1, 1]


def test_what_ends_just_after_the_time_limit_of_a_wait_is_no_timeout(
    alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is done between the core's "still pending" and the next look."""
    real = ops._wait

    def late(ticket: int, timeout: float) -> int:
        assert real(ticket, 10.0) == 0
        return ops._TIMEOUT

    monkeypatch.setattr(ops, "_wait", late)
    assert lwcc.allreduce(np.full(2, 7.0)).tolist() == [7, 7]
    assert lwcc.allreduce_async(np.full(2, 7.0)).wait(0.001).tolist() == [7, 7]


@pytest.mark.parametrize(
    ("keywords", "error", "text"),
    [
        ({"name": 5}, TypeError, "name=5"),
        ({"name": "a\0b"}, ValueError, "zero character"),
        ({"op": "sum"}, TypeError, "op='sum'"),
        ({"priority": 1 << 40}, OverflowError, "priority=1099511627776"),
        ({"prescale_factor": "2"}, TypeError, "prescale='2'"),
        ({"postscale_factor": float("nan"), "op": lwcc.Sum}, ValueError, "not a number"),
        ({"process_set": 3}, TypeError, "process_set=3"),
    ],
)
def test_a_wrong_argument_is_named(alone: Any, keywords: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        lwcc.allreduce(np.ones(3), **keywords)
    if keywords.get("name") != 5:  # the members' names are made of it
        with pytest.raises(error, match=text):
            lwcc.grouped_allreduce([np.ones(3), np.ones(2)], **keywords)
    assert lwcc.allreduce(2.0) == 2.0


def test_a_ticket_that_was_never_filled_goes_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    made = object.__new__(ops.Ticket)  # as torch's compiler does while it traces
    del made
    gc.collect()
    assert seen == []


def wakings() -> int:
    """How often the coordination thread has gone to sleep."""
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() == "lwcc":
            lines = (task / "status").read_text().splitlines()
            return int(next(line for line in lines if line.startswith("voluntary_ctxt_switches")).split()[1])
    raise AssertionError("there is no coordination thread")


def test_a_blocking_call_wakes_nobody(alone: Any) -> None:
    array, calls = np.ones(4, np.float32), 4000
    alone.allreduce_(array, name="a", op=alone.Max)
    before, began = wakings(), time.monotonic()
    for _ in range(calls):
        alone.allreduce_(array, name="a", op=alone.Max)
    naps = (time.monotonic() - began) / 250e-6  # it may look in by itself every half millisecond
    assert wakings() - before < calls / 4 + naps
