"""Ranks behind agents, with a stand-in for ssh that runs its command here; and what the launcher knows of clusters."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from lwcc.launcher import agent, slurm
from lwcc.launcher.args import parse
from lwcc.launcher.env import seats, travelling
from lwcc.launcher.hosts import Host
from lwcc.launcher.nics import Nic, addresses, fits
from lwcc.launcher.spawn import CannotRun

SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
case $2 in
  gone*) echo "ssh: connect to host $2 port 22: Connection refused" >&2; exit 255 ;;
  bare*) echo "$2: No module named lwcc" >&2; exit 1 ;;
  loud*) echo "Welcome to $2!" ;;
esac
shift 2
exec sh -c "$*"
"""


@pytest.fixture
def over_ssh(lwccrun: Any, tmp_path: Path) -> Any:
    """lwccrun with a stand-in for ssh."""
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    return lambda *args, **keywords: lwccrun("--ssh", str(ssh), *args, **keywords)


def test_ranks_of_two_hosts_get_their_numbers_and_their_lines_are_relayed(over_ssh: Any, tmp_path: Path) -> None:
    script = (
        'echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $HOROVOD_CROSS_RANK/$HOROVOD_CROSS_SIZE '
        '$HOROVOD_HOSTNAME ${MINE-none}$LWCC_X"; printf "err $RANK" >&2; touch "$DONE.$RANK"; [ $RANK = 2 ] || exit 0; '
        'until [ -e "$DONE.0" -a -e "$DONE.1" ]; do sleep 0.02; done; exit 7'
    )
    job = over_ssh("-H", "a:2,loud:1", "-x", "LWCC_X=x y", "-x", f"DONE={tmp_path}/done", "sh", "-c", script)
    code, out, err = job.finish()
    assert code == 7
    lines = ["0/3 0/2 0/2 a nonex y", "1/3 1/2 0/1 a nonex y", "2/3 0/1 1/2 loud nonex y"]
    assert sorted(out.splitlines()) == [f"[{rank}] {line}" for rank, line in enumerate(lines)] or "MINE" in os.environ
    assert all(f"[{rank}] err {rank}" in err for rank in range(3))
    assert re.search(r"lwccrun: 2 hosts reach this one at \S+ \(\S+\)", err)
    assert re.search(r"lwccrun: rank 2 failed: exit code 7 after [\d.]+ s \(host loud, pid \d+\)\n  err 2\n", err)


def test_hosts_that_are_not_fit_are_all_named_and_nothing_starts(over_ssh: Any, tmp_path: Path) -> None:
    code, out, err = over_ssh("-H", "a,gone1,bare", "touch", str(tmp_path / "started")).finish()
    assert code == 3 and out == "" and not (tmp_path / "started").exists()
    assert re.search(r"\n  gone1: its agent ended with code 255 \(.*\); is sshd running there, and on that port", err)
    assert re.search(r"\n  bare: its agent ended with code 1 \(.*\); install lwcc there: \S+ -m pip install lwcc", err)
    assert "\n  a: " not in err


def test_signals_reach_ranks_behind_agents(over_ssh: Any) -> None:
    script = "trap 'echo user' USR1; trap 'echo term; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    job = over_ssh("-H", "a:1,b:1", "sh", "-c", script)
    job.read_until(b"ready", 2)
    job.kill(signal.SIGUSR1).read_until(b"user", 2)
    code, out, _ = job.kill(signal.SIGTERM).finish()
    assert code == 143 and out.count("term") == 2


def test_what_ignores_sigterm_behind_an_agent_is_killed_with_its_children(over_ssh: Any) -> None:
    job = over_ssh("-H", "a:1,b:1", "--grace", "0.2", "sh", "-c", "trap '' TERM; tail -f /dev/null & echo ready; wait")
    job.read_until(b"ready", 2)
    assert job.kill(signal.SIGTERM).finish()[0] == 143


def test_sigkill_of_the_launcher_ends_agents_and_ranks(over_ssh: Any) -> None:
    job = over_ssh("-H", "a:1,b:1", "sh", "-c", "trap '' TERM INT HUP; tail -f /dev/null & echo ready; wait")
    job.read_until(b"ready", 2)
    job.kill(signal.SIGKILL).process.wait()
    job.wait_until_nothing_is_left()


def test_a_dry_run_reaches_no_host(over_ssh: Any) -> None:
    code, out, _ = over_ssh("-H", "gone[1-2]:2", "-np", "3", "--dry-run", "true").finish()
    assert code == 0 and "3 rank(s), 2 on gone1, 1 on gone2 by ssh" in out and "HOROVOD_HOSTNAME=gone2" in out


def test_a_probe_tells_what_is_missing_and_which_way_reaches_the_launcher(tmp_path: Path) -> None:
    before = os.getcwd()
    wanted = {"cwd": str(tmp_path), "script": "no.py", "addresses": ["127.0.0.1"], "port": 9, "secret": "00" * 32}
    try:
        told = agent.probe(wanted)
        assert told["problems"] == [f"no such script: no.py (in {tmp_path})"] and told["reached"] == {}
        told = agent.probe({**wanted, "cwd": "/nonexistent"})
        assert told["problems"] == ["the folder /nonexistent is not there: No such file or directory"]
        json.dumps(told)
    finally:
        os.chdir(before)


def test_ranks_fill_hosts_in_order_and_cross_numbers_count_hosts_with_that_local_rank() -> None:
    found = seats((Host("a", 1), Host("b", 3), Host("c", 9)), 6)
    assert [(s.host, s.local_rank, s.local_size) for s in found] == [
        ("a", 0, 1), ("b", 0, 3), ("b", 1, 3), ("b", 2, 3), ("c", 0, 2), ("c", 1, 2),
    ]  # fmt: skip
    assert [(s.cross_rank, s.cross_size) for s in found] == [(0, 3), (1, 3), (0, 2), (0, 1), (2, 3), (1, 2)]


SLURM = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_TASKS_PER_NODE": "2(x2),1"}


def test_a_job_of_slurm_is_found_with_its_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = slurm.allocation(SLURM)
    assert [(h.name, h.slots) for h in hosts] == [("n1", 2), ("n2", 2), ("n3", 1)]
    assert slurm.describe(hosts, SLURM) == "Slurm job 5: 3 nodes x 2/2/1"
    assert slurm.allocation({}) == () and slurm.tasks_per_node("4", 2) == [4, 1]
    with pytest.raises(CannotRun, match="srun has started 8 of lwccrun"):
        slurm.allocation({**SLURM, "SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "8"})
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    spec = parse(["x.py"])
    assert (spec.np, spec.starter, spec.agents) == (5, "slurm", ("n1", "n2", "n3"))
    assert parse(["-np", "3", "x.py"]).agents == ("n1", "n2")
    assert parse(["-np", "3", "--engine", "local", "x.py"]).agents == ()
    assert parse(["-H", "a:2,localhost:2", "x.py"]).agents == ("a",)
    spec = parse(["-H", "a:2,localhost:2", "--engine", "ssh", "--engine", "gloo", "x.py"])
    assert (spec.agents, spec.engine, spec.np) == (("a", "localhost"), "gloo", 4)


def test_addresses_are_chosen_by_name_address_or_subnet() -> None:
    nic = Nic("eth0", "10.1.2.3")
    assert all(fits(nic, wanted) for wanted in ("", "eth0", "10.1.2.3", "10.0.0.0/8"))
    assert not any(fits(nic, wanted) for wanted in ("eth1", "10.1.2.4", "192.168.0.0/16", "fe80::/10"))
    assert addresses("no-such-interface") == []
    assert all(socket.getaddrinfo(nic.address, None) for nic in addresses())


def test_only_what_is_about_the_job_travels() -> None:
    here = {
        "PATH": "/x",
        "LWCC_LOG_LEVEL": "debug",
        "LWCC_SECRET": "s",
        "PYTHONPATH": "p",
        "HOME": "h",
        "PMI_RANK": "1",
    }
    assert sorted(travelling(here)) == ["LWCC_LOG_LEVEL", "PYTHONPATH"]
