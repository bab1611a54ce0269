"""What the simulator knows of the machines: costs of messages and bytes, and the network between the ranks."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Optional

from lwcc.launcher.net import NetSpec, parse_net
from lwcc.plan import Topology

FRAMING = 1514 / 1448  # bytes on an Ethernet for a byte of TCP
PACKET_NBYTES = 150  # of a message that is shorter than a packet: headers there, acknowledgement back
_NUMBER = re.compile(r"[1-9]\d*")


@dataclass(frozen=True)
class Costs:
    """What messages cost, in seconds.

    Attributes:
        latency_s: from the end of the sender's work to the beginning of the receiver's; nobody works meanwhile.
        port_s_per_byte: for which a node's port is busy, where the network has no rate.
        send_s, send_s_per_byte: of the sender's processor, for a message and for each byte.
        recv_s, recv_s_per_byte: of the receiver's.
        add_s_per_byte, copy_s_per_byte: adding, and copying within a rank.
        switch_s: until a waiting rank runs, where ranks share cores.
        start_s: of a call.
        spill: how much more a byte costs a processor, as a share, when the data are far larger than its caches.
        near_s, near_s_per_byte: between ranks of a node, through memory.
    """

    latency_s: float = 15e-6
    port_s_per_byte: float = 0.4e-9
    send_s: float = 0.0
    send_s_per_byte: float = 0.0
    recv_s: float = 0.0
    recv_s_per_byte: float = 0.0
    add_s_per_byte: float = 0.05e-9
    copy_s_per_byte: float = 0.0
    switch_s: float = 0.0
    start_s: float = 0.0
    spill: float = 0.0
    near_s: float = 2e-6
    near_s_per_byte: float = 0.2e-9

    @classmethod
    def of_wire(cls, alpha: float, beta: float, gamma: float, overhead: Optional[float] = None) -> Costs:
        """Return the model of LWCC_COST: a message takes alpha and beta for a byte, adding gamma; each further message
        of a rank at the same time takes `overhead` (default: none)."""
        each = min(overhead or 0.0, alpha)
        return cls(latency_s=alpha - each, port_s_per_byte=beta, add_s_per_byte=gamma, send_s=each)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Costs:
        """Return what the file of the wire says (`lwcc bench p2p`, `lwcc simulate --calibrate`); ValueError."""
        parts = record.get("parts")
        try:
            if parts is not None:
                known = {f.name for f in fields(cls)}
                return cls(**{key: _not_negative(key, value) for key, value in parts.items() if key in known})
            names = ("alpha_s", "beta_s_per_byte", "gamma_s_per_byte")
            alpha, beta, gamma = (_not_negative(name, record[name]) for name in names)
            return cls.of_wire(alpha, beta, gamma, record.get("overhead_s"))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it lacks {error}; expected what `lwcc bench p2p` writes") from None


def _not_negative(name: str, value: Any) -> float:
    if not isinstance(value, (int, float)) or not 0 <= value < 1e3:
        raise ValueError(f"{name} is {value!r}; expected seconds, 0 or more")
    return float(value)


def read_costs(path: str) -> Costs:
    """Return the costs that a file holds; ValueError names the file and what is wrong with it."""
    try:
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
        if not isinstance(record, dict):
            raise ValueError(f"it holds {type(record).__name__}")
        return Costs.from_record(record)
    except (OSError, ValueError) as error:
        raise ValueError(f"lwcc simulate: cost file {path}: {error}") from None


@dataclass(frozen=True)
class Network:
    """Who sits where, and what lies between.

    Attributes:
        ranks: how many; they fill the nodes in blocks, as `lwccrun --net` places them.
        nodes: how many; the ranks of a node share its port. Links are duplex.
        rate: bits per second of a port; 0: `Costs.port_s_per_byte` instead.
        delay_s: of the links, beside `Costs.latency_s`.
        burst_nbytes: what a shaper lets pass at once after a pause.
        cores: of each node; 0: one for each rank.
        host_cores: of the one machine that all nodes are namespaces of; 0: they are machines.
        leaf: nodes on a leaf switch; 0: one switch for all.
        oversubscription: a leaf's uplink is that many times slower than its nodes together.
    """

    ranks: int
    nodes: int
    rate: float = 0.0
    delay_s: float = 0.0
    burst_nbytes: int = 0
    cores: int = 0
    host_cores: int = 0
    leaf: int = 0
    oversubscription: float = 1.0

    def node_of(self, rank: int) -> int:
        """The node of a rank; the first nodes take what does not divide."""
        base, more = divmod(self.ranks, self.nodes)
        big = more * (base + 1)
        return rank // (base + 1) if rank < big else more + (rank - big) // base

    def topology(self) -> Topology:
        """As algorithms see it."""
        return Topology([self.node_of(rank) for rank in range(self.ranks)])

    def port_s_per_byte(self, costs: Costs) -> float:
        """For which a port is busy with a byte."""
        return FRAMING * 8 / self.rate if self.rate else costs.port_s_per_byte

    def text(self) -> str:
        """In a line."""
        parts = [f"{self.ranks} ranks on {self.nodes} nodes", f"{self.rate:g} bit/s" if self.rate else "not shaped"]
        parts += [f"delay {self.delay_s * 1e6:g} us"] if self.delay_s else []
        parts += [f"{self.cores} cores a node"] if self.cores else []
        parts += [f"all on {self.host_cores} cores"] if self.host_cores else []
        parts += [f"leaves of {self.leaf} nodes, {self.oversubscription:g} to 1"] if self.leaf else []
        return ", ".join(parts)


def parse_network(text: str, ranks: int, cores: int = 0) -> Network:
    """Return the network that `--net` describes: as for lwccrun, and leaf=N, oversub=X.

    Raises:
        ValueError: an unknown part, or numbers that do not fit; the text says what is expected.
    """
    ours: dict[str, str] = {}
    rest = []
    for part in filter(None, text.split(",")):
        key, _, value = part.strip().partition("=")
        if key in ("nodes", "leaf", "oversub") and key not in ours:
            ours[key] = value
        else:
            rest.append(part)
    spec = _spec(",".join(rest) or "none")
    nodes = _whole("nodes", ours.get("nodes", str(ranks)), ranks)
    leaf = _whole("leaf", ours["leaf"], nodes) if "leaf" in ours else 0
    over = _ratio(ours.get("oversub", "1"))
    if "oversub" in ours and not leaf:
        raise ValueError("lwcc simulate: --net oversub= needs leaf=N: how many nodes share a switch")
    return Network(ranks, nodes, spec.bits_per_s(), spec.delay_ns() * 1e-9, cores=cores, leaf=leaf,
                   oversubscription=over)  # fmt: skip


def in_namespaces(network: Network, text: str) -> Network:
    """The same network as `lwccrun --net` makes it on this machine: shapers with bursts, nodes that share the cores."""
    spec = _spec(",".join(part for part in text.split(",") if not part.startswith(("nodes", "leaf", "oversub"))))
    burst = spec.burst_nbytes() if spec.rate else 0
    return replace(network, burst_nbytes=burst, host_cores=len(os.sched_getaffinity(0)), cores=0)


def _spec(text: str) -> NetSpec:
    try:
        spec = parse_net(text or "none")
    except Exception as error:  # argparse's
        raise ValueError(f"lwcc simulate: --net {error} (and leaf=N, oversub=X)") from None
    if spec.loss:
        raise ValueError("lwcc simulate: --net loss=: the model has no losses")
    return spec


def _whole(what: str, text: str, most: int) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > most:
        raise ValueError(f"lwcc simulate: --net {what}={text}: expected a whole number from 1 to {most}")
    return int(text)


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value < 1e6:
        raise ValueError(f"lwcc simulate: --net oversub={text}: expected a number, 1 or more")
    return value
