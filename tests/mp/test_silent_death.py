"""A host that vanishes without a word (no FIN, no RST) is an exception on the other ranks in bounded time, whether they
were working or idle. Two network namespaces, joined by a veth pair that is cut."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WRAP = ["unshare", "--user", "--map-root-user", "--net"] if os.getuid() else ["unshare", "--net"]
RANK = """
import os, sys
import numpy as np
import lwcc
lwcc.init()
other = 1 - lwcc.rank()
lwcc.allreduce(np.ones(3), name="first")
print("ready", flush=True)
try:
    if sys.argv[1] == "idle":  # nothing is sent any more: only the kernel's probes can tell
        lwcc.allreduce(np.ones(3), name=f"only{lwcc.rank()}")
    while True:
        lwcc.allreduce(np.ones(100_000), name="work")
except lwcc.PeerLost as error:
    assert error.rank == other and "no sign of life" in str(error), error
    print("LOST", sys.argv[1], flush=True)
"""
# runs in namespace A; the second namespace B is that of a sleeping child
SCENE = """
import os, subprocess, sys
def sh(text): subprocess.run(text, shell=True, check=True)
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
far = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo up; exec cat"], **pipes)
far.stdout.readline()
into = f"nsenter --target {far.pid} --net"
sh(f"ip link add va type veth peer name vb netns {far.pid}")
sh("ip link set lo up; ip addr add 10.99.0.1/24 dev va; ip link set va up")
sh(f"{into} sh -c 'ip link set lo up; ip addr add 10.99.0.2/24 dev vb; ip link set vb up'")
jobs = []
for port, kind in ((7001, "idle"), (7002, "busy")):
    for rank in (0, 1):
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "10.99.0.1", "MASTER_PORT": str(port),
               "LWCC_SECRET": "5a" * 32, "LWCC_PEER_TIMEOUT": "2", "LWCC_STALL_ABORT": "0", "LWCC_STALL_WARN": "0"}
        command = [*(into.split() if rank else []), sys.executable, sys.argv[1], kind]
        jobs.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
for job in jobs:
    assert job.stdout.readline() == "ready\\n"
sh("ip link set va down")
try:
    for job in jobs:
        print(job.communicate(timeout=40)[0].strip(), job.returncode, flush=True)
finally:
    for job in jobs:
        job.kill()
    far.communicate()
"""


def _possible() -> bool:
    if not all(shutil.which(tool) for tool in ("unshare", "nsenter", "ip")):
        return False
    probe = "ip link add va type veth peer name vb"
    return subprocess.run([*WRAP, "sh", "-c", probe], capture_output=True, check=False).returncode == 0


def test_a_host_that_vanishes_is_lost_in_bounded_time(tmp_path: Path) -> None:
    if not _possible():
        pytest.skip("network namespaces are not allowed here")
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "scene.py").write_text(SCENE)
    command: list[Any] = [*WRAP, sys.executable, tmp_path / "scene.py", tmp_path / "rank.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    expected = ["LOST idle 0"] * 2 + ["LOST busy 0"] * 2
    assert done.stdout.split("\n")[:-1] == expected, done.stdout + done.stderr
