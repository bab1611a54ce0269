"""Four nodes of Slurm: lwccrun in a batch job, srun of the ranks themselves, and what is killed."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engines
LWCCRUN = [sys.executable, "-m", "lwcc.launcher"]


def test_a_batch_job_trains_on_what_it_was_given(cluster: Any, finish: Any, tmp_path: Path, digits: list[str]) -> None:
    script, out = tmp_path / "batch.sh", tmp_path / "batch.out"
    ask = f"{sys.executable} -c 'import lwcc; lwcc.init(); print(\"the script itself is\", lwcc.size())'"
    script.write_text(f"#!/bin/sh\n{' '.join([*LWCCRUN, *digits])} 2>&1 || exit\n{ask}\n")
    finish(["sbatch", "-W", "-N", "4", "--ntasks-per-node=1", "-o", str(out), str(script)], **cluster.env)
    text = out.read_text()
    assert re.search(r"lwccrun: Slurm job \d+: 4 nodes x 1", text) and "reached" in text, text
    assert "the script itself is 1" in text


def test_srun_alone_starts_ranks_that_train(cluster: Any, finish: Any, digits: list[str]) -> None:
    done = finish(["srun", "-N", "4", "-n", "4", sys.executable, *digits], **cluster.env)
    assert "reached" in done.out and "on 4 ranks" in done.out


def test_lwccrun_started_by_srun_many_times_says_how_to_start_it(cluster: Any, finish: Any) -> None:
    done = finish(["srun", "-n", "2", *LWCCRUN, "true"], code=2, **cluster.env)
    assert "srun has started 2 of lwccrun" in done.err


def test_a_killed_rank_of_srun_is_an_exception_on_the_others(cluster: Any, finish: Any, forever: str) -> None:
    command = ["srun", "-N", "3", "-n", "3", "--export=ALL,VICTIM=1", sys.executable, forever]
    done = finish(command, code=None, **cluster.env)
    for rank in (0, 2):
        assert re.search(rf"survivor {rank}: rank 1 \(host \S+, pid \d+\) is gone", done.out), done.tail()


def test_a_killed_slurmd_is_reported_with_host_and_rank(
    cluster: Any, finish: Any, forever: str, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)

    def strike() -> None:
        ready.read_text()  # until the first rank is there
        os.kill(cluster.slurmds[3], signal.SIGKILL)

    thread = threading.Thread(target=strike)
    thread.start()
    # without --no-kill Slurm kills the others too, at once
    command = ["salloc", "--no-kill", "-N", "4", "--ntasks-per-node=1", *LWCCRUN, forever]
    done = finish(command, code=1, timeout=150, READY=str(ready), LWCC_PEER_TIMEOUT="5", **cluster.env)
    thread.join(10)
    assert re.search(r"lwccrun: rank 3 failed: lost with its host n4: .*Node failure", done.err), done.tail()
    for rank in range(3):
        assert f"survivor {rank}: rank 3 (" in done.out, done.tail()
