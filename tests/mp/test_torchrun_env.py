"""Started by others: torchrun itself; plain RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; an MPI's numbers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import numpy as np, lwcc
for turn in range(2):
    lwcc.init()
    assert lwcc.size() == 3
    out = lwcc.allreduce(np.full(4, lwcc.rank()), op=lwcc.Sum, name="t")
    assert out.tolist() == [3, 3, 3, 3], out
    lwcc.barrier()
    lwcc.shutdown()
print("fine")
"""

UNDER_TORCHRUN = """
import os, sys, numpy as np, lwcc
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
for turn in range(2):
    lwcc.init()
    assert (lwcc.rank(), lwcc.size()) == (int(os.environ["RANK"]), 2)
    out = lwcc.allreduce(np.full(4, lwcc.rank() + 1), op=lwcc.Sum, name="t")
    assert out.tolist() == [3, 3, 3, 3], out
    lwcc.barrier()
    if attempt == "0" and turn == 1:
        if lwcc.rank() == 1:
            sys.exit(3)
        try:
            lwcc.barrier(name="alone")
        except lwcc.LwccError as error:
            assert "rank 1" in str(error), error
            print("noticed", flush=True)
            sys.exit(4)
    lwcc.shutdown()
os.write(1, f"fine in attempt {attempt}\\n".encode())  # whole: the ranks share the pipe, and print writes word by word
"""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def start(rank: int, port: int, cwd: Path, more: dict[str, str]) -> subprocess.Popen[str]:
    env = {**os.environ, "WORLD_SIZE": "3", "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env={**env, **more},
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    ended = []
    try:
        for p in processes:
            out, err = p.communicate(timeout=60)
            ended.append((p.returncode, out, err))
    finally:
        for p in processes:
            if p.poll() is None:
                p.kill()
                p.communicate()
    return ended


def test_a_job_of_torchrun_meets_in_its_agents_store_also_after_a_restart(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text(UNDER_TORCHRUN)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    command = [*launch, str(script)]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    (ended,) = finish([process])
    code, out, err = ended
    assert code == 0, err
    assert out.count("fine in attempt 1") == 2, (out, err)
    assert "timed out" not in err, err


def test_plain_variables_make_a_job(tmp_path: Path) -> None:
    port = free_port()
    ended = finish([start(rank, port, tmp_path, {}) for rank in (2, 1, 0)])
    assert [(code, out) for code, out, _ in ended] == [(0, "fine\n")] * 3, ended


def test_other_launchers_numbers_with_a_meeting_point(tmp_path: Path) -> None:
    port = free_port()
    processes = []
    for rank in range(3):
        names = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "3", "LWCC_SECRET": "5a" * 32}
        env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
        env |= {**names, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", SCRIPT],
                env=env,
                cwd=tmp_path,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
    ended = finish(processes)
    assert [code for code, _, _ in ended] == [0, 0, 0], ended


def test_a_rank_that_never_comes_is_named(tmp_path: Path) -> None:
    more = {"LWCC_START_TIMEOUT": "3"}
    ended = finish(
        [start(rank, free_port_shared, tmp_path, more) for free_port_shared in [free_port()] for rank in (0, 2)]
    )
    for code, _, err in ended:
        assert code == 1
        assert "missing: rank 1 of 3" in err or "waiting for rank 1 of 3" in err, err
    assert any("missing: rank 1 of 3" in err for _, _, err in ended), ended


@pytest.mark.engines
def test_torchrun_trains_and_ends_when_a_rank_is_killed(finish: Any, digits: list[str], tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    done = finish([*torchrun, *digits])
    assert "on 2 ranks" in done.out and "reached" in done.out
    script = tmp_path / "die.py"
    script.write_text(
        "import os, sys, lwcc\nlwcc.init()\nif lwcc.rank() == 1:\n    os.kill(os.getpid(), 9)\n"
        "try:\n    lwcc.barrier()\nexcept lwcc.PeerLost as error:\n    os.write(1, f'survivor: {error}\\n'.encode())\n"
    )
    done = finish([*torchrun, str(script)], code=None)
    assert "rank      : 1 (local_rank: 1)" in done.err and "Signal 9" in done.err


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_ranks_meet_over_ipv6(tmp_path: Path) -> None:
    port = free_port()
    for code, out, err in finish([start(rank, port, tmp_path, {"MASTER_ADDR": "::1"}) for rank in range(3)]):
        assert (code, out) == (0, "fine\n"), err
