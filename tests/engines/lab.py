"""Hosts on this machine: ``python lab.py FOLDER HOSTS``. Each has its own network, host name and sshd.

Prints where they are as one line of JSON, then holds them until its input ends. Everything is gone with this process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from lwcc.launcher.net import NetSpec, Network

SSHD = "/usr/sbin/sshd"
SERVER = """\
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
"""
CLIENT = """\
Host {name} {address}
  HostName {address}
  User root
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
"""
STRANGER = """\
Host stranger
  HostName {address}
  UserKnownHostsFile /dev/null
"""


def make_keys(folder: Path, addresses: list[str]) -> None:
    for name in ("key", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    public = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text("".join(f"{address} {public}" for address in addresses))


def main(folder: Path, hosts: int) -> None:
    network = Network(NetSpec(nodes=hosts), hosts)
    addresses = [network.address(n) for n in range(hosts)]
    make_keys(folder, addresses)
    Path("/run/sshd").mkdir(exist_ok=True)
    servers = []
    for number, address in enumerate(addresses):
        config = folder / f"sshd_config.{number}"
        config.write_text(SERVER.format(address=address, folder=folder))
        log = (folder / f"sshd.{number}.log").open("wb")
        command = [*network.prefix(number), SSHD, "-D", "-e", "-f", str(config)]
        servers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
    client = "".join(CLIENT.format(name=f"node{n}", address=a, folder=folder) for n, a in enumerate(addresses))
    (folder / "ssh_config").write_text(client + STRANGER.format(address=addresses[-1]))
    nodes = [int(network.prefix(n)[2]) for n in range(hosts)]
    print(json.dumps({"hub": os.getpid(), "nodes": nodes, "addresses": addresses}), flush=True)
    sys.stdin.read()
    for server in servers:
        server.terminate()
        server.wait()
    network.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
