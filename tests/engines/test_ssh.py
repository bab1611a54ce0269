"""Three hosts with ssh: training, and every way to fail."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from lwcc.launcher.mpi import find_mpi
from lwcc.launcher.spawn import CannotRun

pytestmark = pytest.mark.engines
ALL = ("-H", "node0:1,node1:2,node2:1", "-np", "4")


def test_ranks_on_three_hosts_train_to_the_target(hosts: Any, finish: Any, digits: list[str]) -> None:
    done = finish(hosts.command(*ALL, *digits))
    assert "reached" in done.out and "3 hosts reach this one at 10.77.0.254" in done.err


def test_every_host_that_is_not_fit_is_named_with_the_remedy(hosts: Any, finish: Any, tmp_path: Path) -> None:
    script = tmp_path / "x.py"
    script.write_text("")
    bad = "node0,nosuchhost,10.77.0.99,stranger,node2"  # a good one, no name, no host, an unknown key, a good one
    done = finish(hosts.command("-H", bad, "-np", "5", str(script)), code=3, timeout=60)
    lines = done.err.splitlines()
    assert lines[0] == "lwccrun: not every host can take ranks:" and len(lines) == 4
    for host, words in (
        ("nosuchhost", "is the name right?"),
        ("10.77.0.99", "is the host up?"),
        ("stranger", "ssh-keyscan stranger"),
    ):
        assert any(line.startswith(f"  {host}: ") and words in line for line in lines), (host, lines)


def test_a_nic_that_no_host_reaches_is_an_error_that_lists_the_ways(hosts: Any, finish: Any) -> None:
    done = finish(hosts.command(*ALL, "--nic", "127.0.0.0/8", "true"), code=3, timeout=60)
    assert "no address of this host is reached by all others; tried 127.0.0.1" in done.err
    assert "node1 reaches none" in done.err and "--nic NAME|CIDR" in done.err


def test_a_killed_rank_ends_all_others_and_is_named_with_its_host(hosts: Any, finish: Any, forever: str) -> None:
    done = finish(hosts.command(*ALL, "-x", "VICTIM=2", forever), code=137, timeout=60)
    assert re.search(r"lwccrun: rank 2 failed: signal 9 \(SIGKILL\) after [\d.]+ s \(host node1, pid \d+\)", done.err)
    for rank in (0, 1, 3):
        assert re.search(rf"survivor {rank}: rank 2 \(host node1, pid \d+\) is gone", done.out)


def test_mpirun_starts_ranks_on_hosts_that_meet_without_an_address(hosts: Any, finish: Any, tmp_path: Path) -> None:
    try:
        found = find_mpi()
    except CannotRun as error:
        pytest.skip(str(error))
    if found.kind != "openmpi":
        pytest.skip(f"{found.version} has other options")
    ssh, script = tmp_path / "ssh", tmp_path / "script.py"
    ssh.write_text(f'#!/bin/sh\nexec ssh -F {hosts.config} "$@"\n')
    ssh.chmod(0o755)
    script.write_text(
        "import os, numpy as np, lwcc\nlwcc.init()\nout = lwcc.allreduce(np.full(4, lwcc.rank()), op=lwcc.Sum)\n"
        "os.write(1, f'{lwcc.rank()} {os.uname().nodename} {lwcc.local_size()} {out.tolist()}\\n'.encode())\n"
    )
    start = [found.launcher, "--allow-run-as-root", "--host", "10.77.0.1:2,10.77.0.2:1", "-np", "3"]
    start += ["--prtemca", "plm_ssh_agent", str(ssh), sys.executable, str(script)]
    done = finish(["nsenter", "-t", str(hosts.hub), "-n", "--", *start], timeout=60)
    wanted = ["0 node0 2", "1 node0 2", "2 node1 1"]
    assert sorted(done.out.splitlines()) == [f"{line} [3, 3, 3, 3]" for line in wanted], done.tail()


def _start(hosts: Any, *args: str, **env: str) -> subprocess.Popen[str]:
    command = hosts.command(*args)
    return subprocess.Popen(
        command, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _read_ready(job: subprocess.Popen[str], ranks: int) -> dict[int, int]:
    """The pids of the ranks, once all have come together."""
    timer = threading.Timer(60, job.kill)
    timer.start()
    pids: dict[int, int] = {}
    assert job.stdout is not None and job.stderr is not None
    while len(pids) < ranks:
        line = job.stdout.readline()
        assert line, job.stderr.read()
        found = re.search(r"ready (\d+) \S+ pid (\d+)", line)
        if found:
            pids[int(found[1])] = int(found[2])
    timer.cancel()
    return pids


def test_a_host_whose_interface_goes_down_is_lost_within_the_limit(hosts: Any, forever: str) -> None:
    job = _start(hosts, *ALL, forever, LWCC_PEER_TIMEOUT="3")
    pids = _read_ready(job, 4)
    hosts.link(1, "down")
    try:
        out, err = job.communicate(timeout=60)
        for rank in (1, 2):  # the host itself lives: its agent has noticed the silence too
            _wait_for_end(pids[rank])
    finally:
        hosts.link(1, "up")
        job.kill()
    assert job.returncode == 1, err
    assert re.search(r"lwccrun: rank [12] failed: lost with its host node1: no sign of life for 3 s", err), err
    for rank in (0, 3):
        assert re.search(rf"survivor {rank}: rank [12] \(host node1, pid \d+\) is gone", out), (out, err)


def test_ranks_end_on_all_hosts_when_their_launcher_is_killed(hosts: Any, forever: str) -> None:
    job = _start(hosts, *ALL, forever)
    pids = _read_ready(job, 4)
    job.kill()
    job.communicate(timeout=30)
    for pid in pids.values():
        _wait_for_end(pid)


def test_an_interrupt_reaches_the_ranks_of_all_hosts(hosts: Any, forever: str) -> None:
    job = _start(hosts, *ALL, "--grace", "1", forever)
    pids = _read_ready(job, 4)
    job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 130 and "interrupting 4 ranks" in err
    for pid in pids.values():
        _wait_for_end(pid)


def _wait_for_end(pid: int) -> None:
    """Fail if the process lives on for 20 s. All hosts share this machine's processes."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    import select

    ended, _, _ = select.select([fd], [], [], 20)
    os.close(fd)
    assert ended, f"process {pid} is still there: {Path(f'/proc/{pid}/cmdline').read_bytes()!r}"
