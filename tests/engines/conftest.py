"""What the tests of engines stand on: hosts in namespaces, a Slurm cluster, MPI launchers. Skipped where there is none.

As root the Debian packages are installed; nothing of them is started but what a test starts and ends itself.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
PACKAGES = {"sshd": "openssh-server", "slurmctld": "slurm-wlm", "munged": "munge", "ip": "iproute2"}
# Ranks that go on until one of them dies; what the others then say is printed
FOREVER = """
import os, signal, sys
import numpy as np
import lwcc

lwcc.init()
try:
    lwcc.barrier()
    print(f"ready {lwcc.rank()} {os.uname().nodename} pid {os.getpid()}", flush=True)
    if lwcc.rank() == 0 and "READY" in os.environ:
        open(os.environ["READY"], "w").close()
    if os.environ.get("VICTIM") == str(lwcc.rank()):
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        lwcc.allreduce(np.ones(1000), op=lwcc.Sum, name="x")
except lwcc.PeerLost as error:
    os.write(1, f"survivor {lwcc.rank()}: {error}\\n".encode())
    sys.exit(5)
"""


def need(*tools: str) -> None:
    """Have the tools, or skip: installed by apt-get where that is possible."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    missing = [tool for tool in tools if shutil.which(tool, path=path) is None]
    if os.getuid() != 0:
        pytest.skip("hosts of one's own need root")
    if not missing:
        return
    if shutil.which("apt-get") is None:
        pytest.skip(f"{', '.join(missing)} not installed, and no apt-get")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    wanted = [PACKAGES[tool] for tool in missing]
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *wanted]
    for command in (["apt-get", "update", "-qq"], install):
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            pytest.skip(f"apt-get could not install {', '.join(wanted)}: {done.stderr.strip()[-200:]}")


@contextmanager
def held(script: str, folder: Path, count: int) -> Iterator[dict[str, Any]]:
    """A helper that holds what it has made until its input ends; what it printed."""
    with (folder / "helper.err").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, str(HERE / script), str(folder), str(count)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True,
        )  # fmt: skip
        assert process.stdout is not None and process.stdin is not None
        try:
            line = process.stdout.readline()
            if not line:
                pytest.fail(f"{script} did not start: {(folder / 'helper.err').read_text()[-2000:]}")
            yield json.loads(line)
        finally:
            process.stdin.close()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


class Hosts:
    """Hosts node0, node1 ... in namespaces of this machine."""

    def __init__(self, folder: Path, answer: dict[str, Any]) -> None:
        self.config = folder / "ssh_config"
        self.hub, self.nodes = answer["hub"], answer["nodes"]

    def command(self, *args: str) -> list[str]:
        """An lwccrun beside the hosts."""
        ssh = ["--ssh", f"ssh -F {self.config}"]
        return ["nsenter", "-t", str(self.hub), "-n", "--", sys.executable, "-m", "lwcc.launcher", *ssh, *args]

    def link(self, node: int, state: str) -> None:
        """Take a host's interface down or up."""
        inside = ["nsenter", "-t", str(self.nodes[node]), "-n", "ip", "link", "set", "eth0", state]
        subprocess.run(inside, check=True, timeout=10)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Three hosts with an sshd each."""
    need("sshd", "ip")
    folder = tmp_path_factory.mktemp("lab")
    with held("lab.py", folder, 3) as answer:
        yield Hosts(folder, answer)


class Cluster:
    """A Slurm cluster n1, n2 ... on this machine."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.env = {"SLURM_CONF": answer["conf"]}
        self.slurmds: list[int] = answer["slurmds"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four nodes of Slurm."""
    need("slurmctld", "munged")
    folder = tmp_path_factory.mktemp("slurm")
    with held("slurmcluster.py", folder, 4) as answer:
        yield Cluster(answer)


@pytest.fixture
def forever(tmp_path: Path) -> str:
    """A script whose ranks go on until one dies (the one that VICTIM names, if it is set)."""
    path = tmp_path / "forever.py"
    path.write_text(FOREVER)
    return str(path)
