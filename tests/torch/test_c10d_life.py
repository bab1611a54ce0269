"""How jobs with the backend lwcc begin, fail and end: the launchers, what a rank sees of another's trouble."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

UNDER_TORCHRUN = """
import sys, torch, torch.distributed as dist
for turn in range(2):  # the second time after the first is gone
    dist.init_process_group("lwcc")
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x.tolist() == [2.0] * 3
    group = dist.new_group([1])
    dist.barrier()
    dist.destroy_process_group()
print("fine", flush=True)
"""

SPAWNED = """
import sys, torch, torch.distributed as dist, torch.multiprocessing as mp

def work(rank, how, size):
    dist.init_process_group("cpu:lwcc", init_method=how, rank=rank, world_size=size)
    x = torch.full((2,), float(rank))
    dist.all_reduce(x)
    assert x.tolist() == [1.0, 1.0], x
    assert dist.get_backend() == "lwcc" or "lwcc" in dist.get_backend_config(), dist.get_backend()
    dist.destroy_process_group()

if __name__ == "__main__":
    for how in sys.argv[1:]:
        mp.spawn(work, (how, 2), nprocs=2)
    print("fine")
"""

FAILING = """
import os, signal, sys, threading, time, torch, torch.distributed as dist
from datetime import timedelta
import lwcc
dist.init_process_group("lwcc", timeout=timedelta(seconds=2))
rank, size = dist.get_rank(), dist.get_world_size()

def fails(kind, words, action):
    began = time.monotonic()
    try:
        action()
    except kind as error:
        assert all(word in str(error) for word in words.split()), error
        return time.monotonic() - began
    raise AssertionError(f"no {kind.__name__}")

def works():
    x = torch.ones(2)
    dist.all_reduce(x)
    assert x.tolist() == [float(size)] * 2

fails(lwcc.Mismatch, "disagree float32[4] float32[5]", lambda: dist.all_reduce(torch.ones(4 + (rank == 1))))
works()
kind = [torch.float32, torch.float64][rank == 1]
fails(lwcc.Mismatch, "disagree float32 float64", lambda: dist.all_reduce(torch.ones(4, dtype=kind)))
works()
other = (lambda: dist.all_reduce(torch.ones(4))) if rank else lambda: dist.broadcast(torch.ones(4), 0)
fails(lwcc.Mismatch, "disagree broadcast allreduce", other)
works()
future = dist.all_reduce(torch.ones(4 + (rank == 1)), async_op=True).get_future()
fails(RuntimeError, "disagree", future.wait)
works()
print("held: mismatches", flush=True)

store = dist.distributed_c10d._get_default_store()

def meet(what):
    store.set(f"{what}{rank}", "1")
    store.wait([f"{what}{i}" for i in range(size)], timedelta(seconds=30))

if rank != 1:
    work = dist.all_reduce(torch.ones(2), async_op=True)
    took = fails(lwcc.Timeout, "pending 1", lambda: work.wait(timedelta(seconds=1)))
    assert 1 <= took < 3, took
meet("late")
if rank == 1:
    dist.all_reduce(torch.ones(2))
else:
    work.wait()
works()
if rank:
    store.wait(["given up"], timedelta(seconds=30))
took = fails(lwcc.Timeout, "c10d.0.", dist.barrier)  # on rank 0 alone, and then on the others
store.set("given up", "1")
assert 2 <= took < 8, took
meet("barrier")
print("held: timeouts", flush=True)

if rank != 2:
    fails(lwcc.Timeout, "rank 2 monitored_barrier", lambda: dist.monitored_barrier(timeout=timedelta(seconds=1)))
print("held: monitored_barrier", flush=True)
meet("monitored")

group = dist.new_group([1, 2], timeout=timedelta(seconds=1))
if rank == 1:
    took = fails(lwcc.Timeout, "", lambda: dist.all_reduce(torch.ones(1), group=group))
    assert 1 <= took < 3, took
waiting = [] if rank == 2 else [dist.irecv(torch.ones(3), 2)]  # by gloo, which knows no ranks' ends
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
for _ in range(2):
    model(torch.ones(1, 3)).sum().backward()
meet("ready")
if rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
pending = dist.all_reduce(torch.ones(3), async_op=True)
future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
took = fails(lwcc.PeerLost, "rank 2", pending.wait)
took += fails(RuntimeError, "rank 2", future.wait)
took += fails(RuntimeError, "rank 2", lambda: model(torch.ones(1, 3)).sum().backward())
assert took < 3, took  # within a second of the death, which may lie behind: this is a bound for a busy machine
fails(lwcc.PeerLost, "rank 2", lambda: dist.barrier())
fails(lwcc.PeerLost, "rank 2 SIGKILL", waiting[0].wait)
fails(lwcc.PeerLost, "rank 2", lambda: dist.send(torch.ones(1), 2))
print("held: death", flush=True)
dist.destroy_process_group()
"""


def run(command: list[str], cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **more}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_torchrun_starts_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNDER_TORCHRUN)
    done = run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)], tmp_path
    )
    assert done.returncode == 0 and done.stdout.count("fine") == 2, done.stdout + done.stderr


def test_spawned_processes_meet_by_file_and_by_tcp(tmp_path: Path) -> None:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    script = tmp_path / "script.py"
    script.write_text(SPAWNED)
    done = run([sys.executable, str(script), f"file://{tmp_path}/meet", f"tcp://127.0.0.1:{port}"], tmp_path)
    assert done.returncode == 0 and "fine" in done.stdout, done.stdout + done.stderr


def test_each_trouble_is_an_exception_that_names_the_ranks(run_ranks: Any) -> None:
    done = run_ranks(3, FAILING, prelude=False, code=None, timeout=90)
    for what in ("mismatches", "timeouts", "monitored_barrier"):
        assert done.out.count(f"held: {what}") == 3, done.tail()
    assert done.out.count("held: death") == 2, done.tail()
