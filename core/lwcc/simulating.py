"""`lwcc.simulate`: how long algorithms would take on a network, by walking their plans on a clock."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Hashable, Sequence
from typing import NamedTuple, Optional, Union

from lwcc import bench, symmetry
from lwcc.authoring import Algorithm, BuiltIn, find
from lwcc.errors import Unsupported
from lwcc.fabric import Costs, Network, in_namespaces, parse_network, read_costs
from lwcc.flights import KIND_NAMES, SEND
from lwcc.moving import Call
from lwcc.plan import Plan, Topology
from lwcc.simulator import Simulation, Span
from lwcc.symmetry import Cast, Planned

RANKS_LIMIT = 1 << 16
CALLS = 4  # of a loop on shared cores, of which the last counts


class Prediction(NamedTuple):
    """What a simulated call took.

    Attributes:
        seconds: until the last rank was done, from when that rank began.
        nbytes: the payload: of a rank; allgather, reducescatter, alltoall: all blocks together.
        simulated: which ranks, in words.
    """

    seconds: float
    nbytes: int
    simulated: str


class _Given:
    """Plans of all ranks, seen as an algorithm."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        if not plans or [getattr(p, "rank", -1) for p in plans] != list(range(plans[0].size)):
            raise ValueError("lwcc simulate: expected an algorithm, a name, or the plans of all ranks in their order")
        self.collective, self.name, self.about, self.file = plans[0].collective, "plans", "", ""
        self.given = plans

    def plan(self, rank: int, size: int, topology: Optional[Topology] = None) -> Plan:
        """Return one rank's."""
        if size != len(self.given):
            raise Unsupported(f"simulate: these are plans of {len(self.given)} ranks, not of {size}")
        return self.given[rank]


@functools.lru_cache(maxsize=32)
def _kept(algorithm: Hashable, network: Network) -> Cast:
    return symmetry.cast(algorithm, network)  # type: ignore[arg-type]


def _cast(algorithm: Planned, network: Network) -> Cast:
    """Who is simulated: the same for every size."""
    return _kept(algorithm, network)  # type: ignore[arg-type]  # what is made by `class` can be hashed


def copied(collective: str, nbytes: float, ranks: int) -> float:
    """Return how many bytes a rank copies before and after, when it works in place (place and unload of exec.c)."""
    return {"reducescatter": nbytes * (1 + 1 / ranks), "allgather": nbytes / ranks}.get(collective, 0.0)


def run(
    algorithm: Planned, nbytes: int, network: Network, costs: Costs, spans: Optional[list[Span]] = None
) -> Prediction:
    """Simulate one call; on shared cores the last of a loop of barriers and calls, as `lwcc bench` measures."""
    who = _cast(algorithm, network)
    twice = algorithm.collective in ("reducescatter", "alltoall")  # input and output are two arrays
    call = Call(who, nbytes, copied(algorithm.collective, nbytes, network.ranks), nbytes * (1 + twice))
    if not network.host_cores:
        times = Simulation(costs, network, spans).run([call])[-1]
        return Prediction(max(end - begin for begin, end in times), nbytes, who.text)
    meet = Call(_cast(BuiltIn("barrier", "dissemination"), network), 0)
    found = Simulation(costs, network, spans).run([meet, call] * CALLS)[-1]
    return Prediction(max(end - begin for begin, end in found), nbytes, who.text)


def simulate(
    algorithm: Union[Algorithm, str, Sequence[Plan]], ranks: int, nbytes: int, *, collective: str = "allreduce",
    net: str = "", cores: int = 0, namespaces: bool = False, cost: Union[Costs, str, None] = None, timeline: str = "",
) -> Prediction:  # fmt: skip
    """Return how long a collective would take, without a job.

    The plans run through the executor's rules (pieces, what waits for what) on a clock; ranks that do the same are run
    once. See docs/simulate.md for the model and how well it meets measurements.

    Args:
        algorithm: an `@lwcc.algorithm`, a name as "ring" or "mine.py:swing", or the plans of all ranks.
        ranks: how many.
        nbytes: payload of a rank; allgather, reducescatter, alltoall: all blocks together. In place, float32.
        collective: which, where the name alone does not say it.
        net: as for `lwccrun --net`, and leaf=N, oversub=X; default: each rank on a node of its own, not shaped.
        cores: of each node; 0: one for each rank.
        namespaces: the network is one of namespaces on this machine, so that all ranks share its cores.
        cost: costs, or a file of `lwcc bench p2p`; default: the file that it has written last, else a 20 Gb/s wire.
        timeline: a file to write what each simulated rank does to, for Perfetto.

    Raises:
        ValueError: unknown names, numbers that do not fit, or a file that cannot be read.
        Unsupported: the algorithm does not serve so many ranks, or its ranks are too many and not alike.
        PlanRefused: the algorithm's function failed.
    """
    if ranks < 2 or ranks > RANKS_LIMIT:
        raise ValueError(f"lwcc simulate: {ranks} ranks: expected 2 to {RANKS_LIMIT}")
    if nbytes < 0:
        raise ValueError(f"lwcc simulate: {nbytes} bytes")
    what: Planned = find(algorithm, collective) if isinstance(algorithm, (Algorithm, str)) else _Given(algorithm)
    network = network_of(net, ranks, cores, namespaces)
    spans: Optional[list[Span]] = [] if timeline else None
    found = run(what, nbytes, network, costs_of(cost), spans)
    if timeline:
        write_timeline(timeline, spans or [], network)
    return found


def network_of(net: str, ranks: int, cores: int, namespaces: bool) -> Network:
    """Return what `net` describes; ValueError."""
    network = parse_network(net, ranks, cores)
    return in_namespaces(network, net) if namespaces else network


def costs_of(cost: Union[Costs, str, None]) -> Costs:
    """Return costs: given, of a file, of the file of the wire, or the usual ones."""
    if isinstance(cost, Costs):
        return cost
    path = cost or bench.cost_file()
    return read_costs(path) if cost or os.path.exists(path) else Costs.of_wire(15e-6, 0.4e-9, 0.05e-9, 5e-6)


def write_timeline(path: str, spans: Sequence[Span], network: Network) -> None:
    """Write what ranks did as Chrome's trace events: a process for each simulated rank, rows for sends and receives."""
    last = max((span.call for span in spans), default=0)
    mine = [span for span in spans if span.call == last]
    start = min((span.begin for span in mine), default=0.0)
    names = {rank: f"rank {rank} (node {network.node_of(rank)})" for rank in sorted({span.rank for span in mine})}
    events: list[dict[str, object]] = [
        {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": name}} for rank, name in names.items()
    ]
    for span in mine:
        f = span.flight
        where = f" {'to' if f.kind == SEND else 'from'} rank {f.peer}" if f.peer >= 0 else ""
        events.append(
            {"name": KIND_NAMES[f.kind] + where, "cat": "simulated", "ph": "X", "pid": span.rank, "tid": 0,
             "ts": round((span.begin - start) * 1e6, 3), "dur": round((span.end - span.begin) * 1e6, 3),
             "args": {"nbytes": round(span.nbytes), "chunk": f.chunk, "chunks": f.n, "round": f.round}}
        )  # fmt: skip
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(events, file)
    except OSError as error:
        raise ValueError(f"lwcc simulate: cannot write the timeline: {error}") from None
