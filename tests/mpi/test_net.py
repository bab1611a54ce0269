"""`--net`: every engine crosses the same shaped wire, nothing stays behind, and what cannot be is refused."""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from lwcc.launcher import netrelay
from lwcc.launcher.folder import own_folder
from lwcc.launcher.net import NetSpec, parse_net

NBYTES = 4 << 20
SCRIPT = f"""
import socket
import numpy as np
import lwcc
lwcc.init()
a = np.ones({NBYTES} // 4, np.float32)
out = lwcc.allreduce(a, op=lwcc.Sum)
assert (out == lwcc.size()).all()
stats = lwcc.stats()
print(f"on {{socket.gethostname()}} rank {{lwcc.rank()}} shared {{stats['shared_memory']}} engine {{stats['engine']}}")
"""


def permitted() -> bool:
    return subprocess.run(["unshare", "-n", "-u", "true"], capture_output=True, check=False).returncode == 0


needs_root = pytest.mark.skipif(not permitted(), reason="making network namespaces needs root or CAP_NET_ADMIN")


def test_what_is_asked_for() -> None:
    assert parse_net("1gbit") == NetSpec(0, "1gbit")
    assert parse_net("nodes=4,rate=100mbit,delay=100us,loss=0.1%,cc=bbr") == NetSpec(
        4, "100mbit", "100us", "0.1%", "bbr"
    )
    assert parse_net("none,nodes=2") == NetSpec(2)
    assert parse_net("2.5gbit").bits_per_s() == 2.5e9
    assert parse_net("none,delay=1.5ms").delay_ns() == 1_500_000 and parse_net("none,loss=5%").loss_share() == 0.05
    for text in (
        "",
        "fast",
        "1gb",
        "nodes=0",
        "nodes=x",
        "nodes=65",
        "nodes=\u0664",
        "nodes=\u00b2",
        "rate=0gbit",
        "rate=9999tbit",
        "rate=\u0661gbit",
        "delay=11s",
        "rate=1gbit,2gbit",
        "speed=1",
        "loss=1",
        "loss=100%",
    ):
        with pytest.raises(argparse.ArgumentTypeError):
            parse_net(text)


def start(python: str, tmp_path: Path, *options: str) -> list[str]:
    script = tmp_path / "cross.py"
    script.write_text(SCRIPT)
    return [python, "-m", "lwcc.launcher", "-np", "2", *options, str(script)]


def crossed(err: str) -> list[int]:
    line = next(line for line in err.splitlines() if "bytes over the network" in line)
    return [int(word) for word in line.replace(",", "").split() if word.isdigit()]


@needs_root
@pytest.mark.parametrize("engine", ["own", "gloo", "mpi", "mpich"])
def test_each_engine_crosses_the_wire(engine: str, request: Any, environment: dict[str, str], tmp_path: Path) -> None:
    if engine == "gloo":
        pytest.importorskip("torch")
    python = request.getfixturevalue({"mpi": "openmpi", "mpich": "mpich"}.get(engine, "openmpi")).python
    name = "mpi" if engine == "mpich" else engine
    command = start(python, tmp_path, "--net", "1gbit", "--engine", name)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    number = {"own": 0, "mpi": 1, "gloo": 2}[name]
    for rank in range(2):
        assert f"on node{rank} rank {rank} shared 0 engine {number}" in done.stdout, done.stdout
    assert "2 nodes, 1gbit" in done.stderr and "congestion control" in done.stderr
    moved = crossed(done.stderr)
    assert len(moved) == 4 and all(NBYTES < n < 4 * NBYTES for n in moved), moved


LATENCY = """
import time
import numpy as np
import lwcc
lwcc.init()
from lwcc import raw
raw.barrier()
began = time.monotonic()
for k in range(20):
    raw.allreduce(np.ones(4, np.float32))
if lwcc.rank() == 0:
    print("took", time.monotonic() - began)
"""


@needs_root
def test_a_delay_is_crossed_and_lost_frames_come_again(environment: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "latency.py"
    script.write_text(LATENCY)
    wanted = "1gbit,delay=3ms,loss=2%"
    command = [sys.executable, "-m", "lwcc.launcher", "--no-tag", "-np", "2", "--net", wanted, str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(done.stdout.split()[1]) >= 18 * 0.003  # every second call waits for a way there and back
    assert "delay 3ms, loss 2%" in done.stderr


def test_the_relay_keeps_order_and_loses_its_share() -> None:
    source, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    target, got = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for end in (source, given, target, got):
        end.setblocking(False)
    delay = netrelay.Delay(given.fileno(), target.fileno(), 1000, 0.25, 7)
    seen = []
    for number in range(2000):
        source.send(number.to_bytes(4, "big"))
        delay.take()
        while delay.pass_due() is not None:
            pass
        try:
            seen.append(int.from_bytes(got.recv(9), "big"))
        except BlockingIOError:
            continue
    assert seen == sorted(set(seen)) and 1400 < len(seen) < 1600, len(seen)
    for end in (source, given, target, got):
        end.close()


def test_the_folder_of_a_dead_launcher_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for owner in (ended.pid, os.getppid()):
        (tmp_path / f"lwcc-run-{owner}-x").mkdir()
    with own_folder() as mine:
        assert {path.name for path in tmp_path.iterdir()} == {f"lwcc-run-{os.getppid()}-x", Path(mine).name}


SILENCED = """
import numpy as np
import lwcc
lwcc.init()
while True:
    lwcc.allreduce(np.ones(1000, np.float32), name="a")
    print("running", flush=True)
"""


def on_node(job: int) -> set[str]:
    """The processes in the network namespaces of the nodes of a launcher."""
    nodes = Path(f"/proc/{job}/task/{job}/children").read_text().split()
    keepers = [p for p in nodes if b"netnode.py" in Path(f"/proc/{p}/cmdline").read_bytes()]
    spaces = {os.readlink(f"/proc/{p}/ns/net") for p in keepers}
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            found |= {path.name} if os.readlink(path / "ns" / "net") in spaces else set()
        except OSError:
            pass  # it has ended
    return found


@needs_root
@pytest.mark.parametrize("engine", ["own", "mpi"])
def test_a_node_without_its_link_is_named_and_nothing_stays(
    engine: str, openmpi: Any, environment: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "silenced.py"
    script.write_text(SILENCED)
    command = [openmpi.python, "-m", "lwcc.launcher", "-np", "2", "--net", "none", "--engine", engine, str(script)]
    environment["LWCC_PEER_TIMEOUT"] = "3"
    with open(tmp_path / "said", "w+", encoding="utf-8") as said:
        job = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=said, text=True)
        assert job.stdout is not None
        while "running" not in job.stdout.readline():
            assert job.poll() is None
        there = on_node(job.pid)
        keeper = next(p for p in there if b"\0node1\0" in Path(f"/proc/{p}/cmdline").read_bytes())
        subprocess.run(["nsenter", "-t", keeper, "-n", "ip", "link", "set", "eth0", "down"], check=True)
        job.communicate(timeout=80)
        said.seek(0)
        text = said.read()
    assert job.returncode == 1, text
    assert re.search(r"lwccrun: rank [01] failed: exit code 1 after .* \(host node[01]", text), text
    assert "PeerLost: rank" in text and not any(alive(p) for p in there), text


def alive(pid: str) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def interfaces() -> str:
    return Path("/proc/net/dev").read_text()


@needs_root
def test_nothing_stays_behind_a_launcher_that_was_killed(environment: dict[str, str], tmp_path: Path) -> None:
    before = sorted(line.split(":")[0] for line in interfaces().splitlines()[2:])
    script = tmp_path / "wait.py"
    script.write_text("import os, sys\nprint('up', os.getpid(), flush=True)\nimport signal\nsignal.pause()\n")
    command = [sys.executable, "-m", "lwcc.launcher", "--no-tag", "-np", "2", "--net", "none", str(script)]
    job = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert job.stdout is not None
    pids = [int(job.stdout.readline().split()[1]) for _ in range(2)]
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    os.kill(job.pid, signal.SIGKILL)
    job.wait(10)
    deadline = time.monotonic() + 20
    left = [p for p in [*pids, *map(int, children)] if Path(f"/proc/{p}").exists()]
    while left and time.monotonic() < deadline:
        left = [p for p in left if Path(f"/proc/{p}").exists() and " Z " not in Path(f"/proc/{p}/stat").read_text()]
    assert not left
    assert sorted(line.split(":")[0] for line in interfaces().splitlines()[2:]) == before
    job.stdout.close()


@needs_root
@pytest.mark.parametrize(
    ("net", "text"), [("nodes=3", "at most one node for each"), ("1gbit,cc=nonsense", "congctl nonsense")]
)
def test_what_cannot_be_made_is_refused(net: str, text: str, environment: dict[str, str], tmp_path: Path) -> None:
    command = start(sys.executable, tmp_path, "--net", net)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0 and text in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody without rights")
def test_without_rights_the_message_says_what_is_needed(environment: dict[str, str], tmp_path: Path) -> None:
    code = (
        "import os\nfrom lwcc.launcher.net import Network, NetSpec\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\nNetwork(NetSpec(), 2)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd="/", capture_output=True, text=True, timeout=60, check=False
    )
    assert "needs root or CAP_SYS_ADMIN" in done.stderr, done.stderr
