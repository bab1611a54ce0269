"""A Slurm cluster on this machine: ``python slurmcluster.py FOLDER NODES``, root. Nodes n1, n2 ... share the host.

Prints where its configuration is, as JSON with the pids of the nodes' daemons, and ends with its input.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

CONFIG = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=5
MessageTimeout=10
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=4 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count: int) -> int:
    """The first of so many ports in a row that are free, below those that the kernel hands out."""
    for first in range(17001, 30000, 50):
        try:
            for port in range(first, first + count):
                with socket.socket() as sock:
                    sock.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
    raise OSError("no free ports")


def start(folder: Path, name: str, command: list[str]) -> subprocess.Popen[bytes]:
    log = (folder / f"{name}.out").open("wb")
    env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True)


def look_again(daemon: subprocess.Popen[bytes], seconds: float) -> None:
    """Let some time pass in which the daemon has to live on."""
    try:
        code = daemon.wait(seconds)
    except subprocess.TimeoutExpired:
        return
    raise RuntimeError(f"{daemon.args} ended with code {code}; its log is beside the configuration")


def wait_until_idle(folder: Path, nodes: int, seconds: float, slurmctld: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + seconds
    env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    shown = ""
    while time.monotonic() < deadline:
        command = ["sinfo", "-h", "-N", "-o", "%N %t"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        shown = done.stdout + done.stderr
        if done.stdout.split().count("idle") == nodes:
            return
        look_again(slurmctld, 0.2)
    raise TimeoutError(f"the nodes did not come up: {shown}")


def main(folder: Path, nodes: int) -> None:
    first = free_ports(nodes + 1)
    text = CONFIG.format(
        host=socket.gethostname(), folder=folder, nodes=nodes, port=first + nodes, first=first, last=first + nodes - 1
    )
    (folder / "slurm.conf").write_text(text)
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(64))
    (folder / "munge.key").chmod(0o400)
    files = [f"--{what}-file={folder}/munge.{what}" for what in ("key", "pid", "log", "seed")]
    daemons = [start(folder, "munged", ["munged", "-F", "--force", f"--socket={folder}/munge.socket", *files])]
    deadline = time.monotonic() + 10
    while not (folder / "munge.socket").exists() and time.monotonic() < deadline:
        look_again(daemons[0], 0.02)
    daemons.append(start(folder, "slurmctld", ["slurmctld", "-D"]))
    slurmds = [start(folder, f"slurmd.{n}", ["slurmd", "-D", "-N", f"n{n}"]) for n in range(1, nodes + 1)]
    try:
        wait_until_idle(folder, nodes, 60, daemons[1])
        answer = {"conf": str(folder / "slurm.conf"), "slurmds": [d.pid for d in slurmds]}
        print(json.dumps(answer), flush=True)
        sys.stdin.read()
    finally:
        for daemon in [*slurmds, *reversed(daemons)]:
            daemon.send_signal(signal.SIGTERM)
        for daemon in [*slurmds, *reversed(daemons)]:
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
