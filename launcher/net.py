"""`--net`: a network of namespaces on this machine, so that ranks talk as if they were on several hosts.

lwccrun moves into a network namespace of its own, which holds a bridge. Each node is a process that only sleeps, in a
network and host-name namespace of its own, joined to the bridge by a pair of virtual interfaces whose ends are shaped.
Nothing has a name outside: when lwccrun and the nodes are gone, even by SIGKILL, the kernel has removed all of it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from lwcc.launcher.folder import own_folder
from lwcc.launcher.spawn import CannotRun, describe_status

_HERE = os.path.dirname(os.path.abspath(__file__))
_CLONE_NEWNET = 0x40000000
_NET = "10.77.0"
HUB = f"{_NET}.254"
MAX_NODES = 64
CLEAR_S = 5.0  # what a node may take to end what runs on it
RELAY_CEILING = "at most about 4 Gbit/s with delay alone, 1 Gbit/s with loss"
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(k|m|g|t)?bit")
_DELAY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(us|ms|s)")
_LOSS = re.compile(r"([0-9]+(?:\.[0-9]+)?)%")
_SEED = 20240229  # of the relays' losses


@dataclass(frozen=True)
class NetSpec:
    """What is wanted. nodes 0: one for each rank; rate "": not shaped; delay and loss: of a frame from node to node."""

    nodes: int = 0
    rate: str = ""
    delay: str = ""
    loss: str = ""
    congestion: str = ""

    def text(self) -> str:
        """As it is shown."""
        parts = [f"{self.nodes} nodes", self.rate or "not shaped"]
        parts += [f"{k} {v}" for k, v in (("delay", self.delay), ("loss", self.loss)) if v]
        return ", ".join(parts)

    def wire(self) -> str:
        """What a measurement of its wire holds for."""
        shape = [self.rate or "not shaped", *([f"delay {self.delay}"] if self.delay else [])]
        return ", ".join([*shape, *([f"loss {self.loss}"] if self.loss else [])])

    def bits_per_s(self) -> float:
        """The rate; 0 if not shaped."""
        found = _RATE.fullmatch(self.rate)
        return float(found[1]) * {None: 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}[found[2]] if found else 0.0

    def delay_ns(self) -> int:
        """The delay; 0 if there is none."""
        found = _DELAY.fullmatch(self.delay)
        return round(float(found[1]) * {"us": 1e3, "ms": 1e6, "s": 1e9}[found[2]]) if found else 0

    def loss_share(self) -> float:
        """How many of the frames are lost, 0 to 1."""
        found = _LOSS.fullmatch(self.loss)
        return min(float(found[1]) / 100, 1.0) if found else 0.0

    def burst_nbytes(self) -> int:
        """What may pass at once: 1 ms at the rate, and no less than the kernel needs for large segments."""
        return max(128 << 10, int(self.bits_per_s() / 8 * 1e-3))


def parse_net(text: str) -> NetSpec:
    """Parse "1gbit" or "nodes=4,rate=1gbit,delay=100us,loss=0.1%,cc=bbr". Raises ArgumentTypeError."""
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if not equals:
            key, value = "rate", key
        if key in found:
            raise argparse.ArgumentTypeError(f"{part!r}: {key} is {found[key]!r} already")
        if key not in ("nodes", "rate", "delay", "loss", "cc"):
            raise argparse.ArgumentTypeError(
                f"{part!r}: expected nodes=N, rate=1gbit, delay=100us, loss=0.1% or cc=NAME"
            )
        found[key] = value
    if found.get("rate") in ("none", "unshaped"):
        del found["rate"]
    for key, form, example in (("rate", _RATE, "1gbit"), ("delay", _DELAY, "100us"), ("loss", _LOSS, "0.1%")):
        if key in found and not form.fullmatch(found[key]):
            raise argparse.ArgumentTypeError(f"{key}={found[key]!r}: expected something like {example}")
    nodes = found.get("nodes", "1")
    if not re.fullmatch("[0-9]{1,4}", nodes) or not 1 <= int(nodes) <= MAX_NODES:
        raise argparse.ArgumentTypeError(f"nodes={nodes!r}: expected 1 to {MAX_NODES}")
    spec = NetSpec(
        int(found.get("nodes", "0")), found.get("rate", ""), found.get("delay", ""), found.get("loss", ""),
        found.get("cc", ""),
    )  # fmt: skip
    limits: tuple[tuple[str, float, float, float, str], ...] = (
        ("rate", spec.bits_per_s(), 1e3, 1e12, "1kbit to 1tbit"),
        ("delay", spec.delay_ns(), 0, 10e9, "at most 10s"),
        ("loss", spec.loss_share(), 0, 0.99, "at most 99%"),
    )
    for name, number, least, most, wanted in limits:
        if name in found and not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{name}={found[name]!r}: expected {wanted}")
    return spec


def wire_of(net: str) -> str:
    """Return what a measurement over a --net holds for: the same rate, delay and loss. "": the machines' own wire."""
    return parse_net(net).wire() if net else ""


def _do(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        raise CannotRun(f"--net: {' '.join(command)}: no end after 20 s", 1) from None
    if done.returncode:
        raise CannotRun(f"--net: {' '.join(command)}: {done.stderr.strip() or done.returncode}", 1)
    return done.stdout


def _has_netem() -> bool:
    """Try it on this namespace's own loopback."""
    try:
        _do("tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1us")
    except CannotRun:
        return False
    _do("tc", "qdisc", "del", "dev", "lo", "root")
    return True


def _not_permitted(why: str) -> CannotRun:
    return CannotRun(
        f"--net needs root or CAP_SYS_ADMIN and CAP_NET_ADMIN to make network namespaces: {why}. Run lwccrun with "
        "sudo, or under `unshare -Ur`",
        2,
    )


class Network:
    """The network while it exists. Make it before the process has other threads."""

    def __init__(self, spec: NetSpec, ranks: int) -> None:
        """Raises CannotRun: not permitted, a tool is missing, or the kernel lacks what is wanted."""
        self.spec = NetSpec(spec.nodes or ranks, spec.rate, spec.delay, spec.loss, spec.congestion)
        self.ranks = ranks
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._relays: list[subprocess.Popen[bytes]] = []
        self._folder = own_folder()
        self._relayed = False
        if self.spec.nodes > min(ranks, MAX_NODES):
            raise CannotRun(
                f"--net nodes={self.spec.nodes}: expected at most one node for each of the {ranks} ranks", 2
            )
        for tool in ("ip", "tc", "nsenter"):
            if shutil.which(tool) is None:
                raise CannotRun(f"--net needs the command {tool} (packages iproute2 and util-linux)", 2)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNET):
            raise _not_permitted(os.strerror(ctypes.get_errno()))
        try:
            _do("ip", "link", "set", "lo", "up")
        except CannotRun as error:
            raise _not_permitted(str(error)) from None
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        self._relayed = bool(self.spec.delay or self.spec.loss) and not _has_netem()
        _do("ip", "link", "add", "lab", "type", "bridge")
        _do("ip", "addr", "add", f"{HUB}/24", "dev", "lab")
        _do("ip", "link", "set", "lab", "up")
        for number in range(self.spec.nodes):
            words = ("netnode.py", str(os.getpid()), f"node{number}", str(CLEAR_S))
            command = (sys.executable, "-I", "-S", os.path.join(_HERE, words[0]), *words[1:])
            node = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._nodes.append(node)
            self._await(node, f"node {number}")
            self._join(number, node.pid)

    @staticmethod
    def _await(process: subprocess.Popen[bytes], what: str) -> None:
        if process.stdout is None or process.stdout.readline() != b"ready\n":
            raise CannotRun(f"--net: {what} did not start", 1)

    def _join(self, number: int, pid: int) -> None:
        inside = ("nsenter", "-t", str(pid), "-n")
        if self._relayed:
            self._relay(number, inside)
        else:
            _do("ip", "link", "add", f"n{number}", "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        _do("ip", "link", "set", f"n{number}", "master", "lab", "up")
        _do(*inside, "ip", "link", "set", "lo", "up")
        _do(*inside, "ip", "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
        _do(*inside, "ip", "link", "set", "eth0", "up")
        if self.spec.congestion:
            route = ("ip", "route", "replace", f"{_NET}.0/24", "dev", "eth0", "congctl", self.spec.congestion)
            _do(*inside, *route)
        self._shape((), f"n{number}")
        self._shape(inside, "eth0")
        if not self._relayed and (self.spec.delay or self.spec.loss):
            parent = ("parent", "1:1", "handle", "10:") if self.spec.rate else ("root",)
            wanted = (*(("delay", self.spec.delay) if self.spec.delay else ()),
                      *(("loss", self.spec.loss) if self.spec.loss else ()))  # fmt: skip
            _do(*inside, "tc", "qdisc", "add", "dev", "eth0", *parent, "netem", *wanted)

    def _relay(self, number: int, inside: tuple[str, ...]) -> None:
        if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
            raise CannotRun("--net: delay and loss need the kernel's netem or TAP devices; it has neither here", 2)
        words = (str(os.getpid()), f"n{number}", str(self.spec.delay_ns()), str(self.spec.loss_share()))
        command = (*inside, sys.executable, "-I", "-S", os.path.join(_HERE, "netrelay.py"), *words)
        relay = subprocess.Popen((*command, str(_SEED + number)), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._relays.append(relay)
        self._await(relay, f"the relay of node {number}")

    def _shape(self, inside: tuple[str, ...], device: str) -> None:
        if self.spec.rate:
            limits = ("rate", self.spec.rate, "burst", str(self.spec.burst_nbytes()), "latency", "50ms")
            _do(*inside, "tc", "qdisc", "add", "dev", device, "root", "handle", "1:", "tbf", *limits)

    def address(self, number: int) -> str:
        """The address of a node."""
        return f"{_NET}.{number + 1}"

    def node_of(self, rank: int) -> int:
        """Ranks are laid out in blocks, the first nodes taking what does not divide."""
        base, more = divmod(self.ranks, self.spec.nodes)
        big = more * (base + 1)
        return rank // (base + 1) if rank < big else more + (rank - big) // base

    def prefix(self, rank: int) -> tuple[str, ...]:
        """What a rank's command starts with, to run on its node."""
        return ("nsenter", "-t", str(self._nodes[self.node_of(rank)].pid), "-n", "-u", "--")

    def variables(self) -> dict[str, str]:
        """What the ranks of every engine need to find the right interface."""
        ours = {"LWCC_CONGESTION": self.spec.congestion} if self.spec.congestion else {}
        return {"GLOO_SOCKET_IFNAME": "eth0", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0", "LWCC_IFACE": "eth0",
                **ours}  # fmt: skip

    def mpi_arguments(self, kind: str, given: Sequence[str]) -> list[str]:
        """Arguments that make an MPI's launcher start its daemons on the nodes, and cross nothing but the network.

        given: those of its settings, which may have chosen the layer that sends messages (UCX keeps to TCP by itself).
        """
        places = {str(self.address(n)): node.pid for n, node in enumerate(self._nodes)}
        agent = os.path.join(self._folder.name, "agent")
        with open(agent, "w", encoding="utf-8") as file:
            words = (sys.executable, "-I", "-S", os.path.join(_HERE, "netagent.py"), json.dumps(places))
            file.write("#!/bin/sh\nexec " + " ".join("'" + word + "'" for word in words) + ' "$@"\n')
        os.chmod(agent, 0o700)
        counts = [sum(self.node_of(r) == n for r in range(self.ranks)) for n in range(self.spec.nodes)]
        hosts = [f"{self.address(n)}:{count}" for n, count in enumerate(counts)]
        if kind == "openmpi":
            layer = [] if "pml" in given else ["--mca", "pml", "ob1"]
            return ["--host", ",".join(hosts), "--prtemca", "plm_ssh_agent", agent, *layer,
                    "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "eth0"]  # fmt: skip
        return ["-launcher", "ssh", "-launcher-exec", agent, "-localhost", HUB, "-hosts", ",".join(hosts)]

    def describe(self) -> str:
        """What was made, in a line."""
        with open("/proc/sys/net/ipv4/tcp_congestion_control", encoding="ascii") as file:
            congestion = self.spec.congestion or file.read().strip()
        burst = f" (tbf, burst {self.spec.burst_nbytes() >> 10} KiB)" if self.spec.rate else ""
        relay = f", delay and loss by a relay in user space: {RELAY_CEILING}" if self._relayed else ""
        return f"network of namespaces: {self.spec.text()}{burst}{relay}, congestion control {congestion}"

    def traffic(self) -> str:
        """Bytes that each node has sent and received so far, and what of the network has died, in a line."""
        found = []
        for number in range(self.spec.nodes):
            try:
                stats = json.loads(_do("ip", "-s", "-j", "link", "show", f"n{number}"))[0]["stats64"]
            except CannotRun:
                found.append(f"node{number}'s interface is gone")
                continue  # what the bridge receives, the node has sent
            found.append(f"node{number} sent {stats['rx']['bytes']} received {stats['tx']['bytes']}")
        for what, processes in (("relay", self._relays), ("namespace's keeper", self._nodes)):
            for number, process in enumerate(processes):
                if process.poll() is not None:
                    found.append(f"the {what} of node{number} ended before: {describe_status(process.returncode)}")
        return "bytes over the network: " + ", ".join(found)

    def close(self) -> None:
        """End the nodes and what still runs on them; the kernel removes the rest with this process."""
        for relay in self._relays:
            relay.kill()
        for process in (*self._relays, *self._nodes):
            if process.stdin is not None:
                process.stdin.close()  # a node kills what is left on it, and ends
        for process in (*self._nodes, *self._relays):
            try:
                process.wait(timeout=CLEAR_S + 1)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._nodes.clear()
        self._relays.clear()
        self._folder.cleanup()
