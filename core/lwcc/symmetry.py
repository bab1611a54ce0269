"""All ranks' flights, or those of one rank of each kind: ranks that do the same at the same times are simulated once.

Two ranks are of one kind if their flights are alike and meet flights of ranks of one kind; with nodes, if their nodes'
ranks are.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional, Protocol

import numpy as np

from lwcc import flights
from lwcc.errors import Unsupported
from lwcc.fabric import Network
from lwcc.flights import FOLDED, LOCAL, SEND, Flight
from lwcc.plan import Plan, Topology

SMALL = 64  # ranks up to which each is simulated, with its chunks as the executor cuts them
SAMPLE = 5  # ranks whose plans are compared before all of them are
LONG = 2000  # steps
FLIGHTS_LIMIT = 3_000_000
PATIENCE_S = 60.0
_SEED = 20261130


class Planned(Protocol):
    """What has plans: an `Algorithm`, a `BuiltIn`."""

    collective: str
    name: str

    def plan(self, rank: int, size: int, topology: Optional[Topology] = None) -> Plan:
        """Return one rank's plan."""


@dataclass
class Cast:
    """Who is simulated.

    Attributes:
        ranks: the simulated ranks, ascending by place.
        flights: of each of them.
        to: for each of them and each of its sends, (place, flight) of the receive; None for other flights.
        chunks: parts of the buffer.
        exact: every rank is there.
        text: how ranks were put together.
    """

    ranks: list[int]
    flights: list[list[Flight]]
    to: list[list[Optional[tuple[int, int]]]]
    chunks: int
    exact: bool
    text: str


def cast(algorithm: Planned, network: Network) -> Cast:
    """Return whom to simulate.

    Raises:
        Unsupported: it does not serve so many ranks, or there are too many messages, and no symmetry to save them.
        PlanRefused: see `Algorithm.plan`; also where a message has no receive.
    """
    builder = _Builder(algorithm, network)
    if network.ranks <= SMALL:
        return builder.everybody()
    collects = gc.isenabled()
    gc.disable()  # millions of small tuples and no circle among them: looking through them again and again takes longer
    try:
        found = None if network.host_cores else builder.by_shift()
        return found or builder.by_kind()
    finally:
        if collects:
            gc.enable()


class _Builder:
    def __init__(self, algorithm: Planned, network: Network) -> None:
        self.algorithm, self.network = algorithm, network
        self.size = network.ranks
        self.topology = network.topology()
        self.chunks = 1
        self.began = time.monotonic()
        self.join = self.size > SMALL

    def plan(self, rank: int) -> Plan:
        plan = self.algorithm.plan(rank, self.size, self.topology)
        self.chunks = plan.chunks
        return plan

    def one(self, rank: int) -> list[Flight]:
        return flights.of_plan(self.plan(rank), self.join)

    def group(self) -> int:
        """Ranks of what shares nothing with others: a node, or a leaf switch."""
        net = self.network
        if self.size % net.nodes or (net.leaf and net.nodes % net.leaf):
            return 0
        return self.size // net.nodes * (net.leaf or 1)

    # ---- every rank ----

    def everybody(self) -> Cast:
        all_flights = [self.one(rank) for rank in range(self.size)]
        to = _matches(self.algorithm.name, all_flights)
        return Cast(list(range(self.size)), all_flights, to, self.chunks, True, "every rank")

    # ---- by a shift: rank r + group does what r does ----

    def by_shift(self) -> Optional[Cast]:
        each = self.group()
        if not each or each > SMALL or each == self.size:
            return None
        first = [self.plan(rank) for rank in range(each)]
        dice = random.Random(_SEED)
        sample = {each, self.size // 2, self.size - 1, *(dice.randrange(each, self.size) for _ in range(SAMPLE))}
        for rank in sorted(sample):
            if not self._alike(self.plan(rank), first[rank % each]):
                return None
        text = f"{each} of {self.size} ranks: the others are alike (compared: {len(sample)})"
        mine = [flights.of_plan(plan, self.join) for plan in first]
        return Cast(list(range(each)), mine, self._shifted(mine, each), self.chunks, False, text)

    def _alike(self, plan: Plan, first: Plan) -> bool:
        """Long plans step by step; others as flights, where ranges are joined that the buffer's end cuts."""
        shift, size = plan.rank - first.rank, self.size
        if len(first.steps) <= LONG:
            mine, other = (flights.of_plan(p, self.join) for p in (plan, first))
            return _moved(mine, size, -shift) == _moved(other, size, 0)
        if len(plan.steps) != len(first.steps) or plan.ends != first.ends or plan.chunks % size:
            return False
        mine_steps, other_steps = np.array(plan.steps), np.array(first.steps)
        mine_steps[:, 1] = (mine_steps[:, 1] - shift) % size
        mine_steps[:, 2] = (mine_steps[:, 2] - shift * (plan.chunks // size)) % plan.chunks
        return bool((mine_steps == other_steps).all())

    def _shifted(self, first: list[list[Flight]], each: int) -> list[list[Optional[tuple[int, int]]]]:
        """Sends meet the receives of the same pair in order; a pair is known by its places and its distance."""
        receives: dict[tuple[int, int, int], list[int]] = {}
        for place, mine in enumerate(first):
            for number, f in enumerate(mine):
                if f.kind not in (SEND, FOLDED, LOCAL):
                    key = (f.peer % each, place, (place - f.peer) % self.size)
                    receives.setdefault(key, []).append(number)
        out = []
        seen: dict[tuple[int, int, int], int] = {}
        for place, mine in enumerate(first):
            targets: list[Optional[tuple[int, int]]] = []
            for f in mine:
                key = (place, f.peer % each, (f.peer - place) % self.size)
                targets.append(_take(receives, seen, key, self.algorithm.name) if f.kind == SEND else None)
            out.append(targets)
        return out

    # ---- by kinds ----

    def by_kind(self) -> Cast:
        all_flights: list[list[Flight]] = []
        total = 0
        for rank in range(self.size):
            all_flights.append(self.one(rank))
            total += len(all_flights[-1])
            spent = (time.monotonic() - self.began) / (rank + 1) * self.size
            if total > FLIGHTS_LIMIT or (rank >= SAMPLE and spent > PATIENCE_S):
                many = total // (rank + 1) * self.size
                why = f"{many} messages, at most {FLIGHTS_LIMIT}"
                if total <= FLIGHTS_LIMIT:
                    why = f"{spent:.0f} s to build them, at most {PATIENCE_S:.0f}"
                raise Unsupported(
                    f"simulate: {self.algorithm.name}: its {self.size} ranks are not alike, so that all their plans "
                    f"would be needed, which is too much ({why}); take fewer ranks"
                )
        to = _matches(self.algorithm.name, all_flights)
        chosen = self._chosen(all_flights, to)
        if len(chosen) == self.size:
            return Cast(chosen, all_flights, to, self.chunks, False, "every rank")
        return self._reduced(all_flights, to, chosen)

    def _chosen(self, all_flights: list[list[Flight]], to: list[list[Optional[tuple[int, int]]]]) -> list[int]:
        """Return the ranks of one group of each kind of group."""
        each = self.group()
        if not each or self.network.host_cores:
            return list(range(self.size))
        meets = [[target or (-1, -1) for target in targets] for targets in to]
        for r, targets in enumerate(to):
            for number, target in enumerate(targets):
                if target is not None:
                    meets[target[0]][target[1]] = (r, number)
        kinds: dict[object, int] = {}
        colour = [kinds.setdefault(tuple(map(_kind, mine)), len(kinds)) for mine in all_flights]
        while True:
            before = len(set(colour))
            seen: dict[object, int] = {}
            of = []
            for r in range(self.size):
                met = tuple((colour[q], i) if q >= 0 else None for q, i in meets[r])
                of.append(seen.setdefault((colour[r], met), len(seen)))
            groups: dict[object, int] = {}
            together = [groups.setdefault(tuple(of[g : g + each]), len(groups)) for g in range(0, self.size, each)]
            colour = [together[r // each] * each + r % each for r in range(self.size)]
            if len(set(colour)) == before:
                break
        firsts = {kind: group for group, kind in reversed(list(enumerate(together)))}
        self.colour = colour
        return sorted(r for group in firsts.values() for r in range(group * each, (group + 1) * each))

    def _reduced(
        self, all_flights: list[list[Flight]], to: list[list[Optional[tuple[int, int]]]], chosen: list[int]
    ) -> Cast:
        place = {self.colour[r]: i for i, r in enumerate(chosen)}
        moved = [[None if t is None else (place[self.colour[t[0]]], t[1]) for t in to[r]] for r in chosen]
        text = f"{len(chosen)} of {self.size} ranks: the others are alike"
        return Cast(chosen, [all_flights[r] for r in chosen], moved, self.chunks, False, text)


def _kind(f: Flight) -> object:
    """Which part of an earlier flight it needs is not looked at: ranks that differ in that alone count as alike."""
    return f.kind, f.n, tuple(g for g, _ in f.needs)


def _moved(mine: Sequence[Flight], size: int, by: int) -> list[tuple[int, int, int, object]]:
    return [(f.kind, (f.peer + by) % size if f.peer >= 0 else -1, f.n, f.needs) for f in mine]


def _take(
    receives: dict[tuple[int, int, int], list[int]], seen: dict[tuple[int, int, int], int], key: tuple[int, int, int],
    name: str,
) -> tuple[int, int]:  # fmt: skip
    number = seen.get(key, 0)
    seen[key] = number + 1
    there = receives.get(key, [])
    if number >= len(there):
        raise Unsupported(f"simulate: {name}: a message of rank {key[0]} has no receive; see `lwcc check`")
    return key[1], there[number]


def _matches(name: str, all_flights: list[list[Flight]]) -> list[list[Optional[tuple[int, int]]]]:
    receives: dict[tuple[int, int, int], list[int]] = {}
    for rank, mine in enumerate(all_flights):
        for number, f in enumerate(mine):
            if f.kind not in (SEND, FOLDED, LOCAL):
                receives.setdefault((f.peer, rank, 0), []).append(number)
    seen: dict[tuple[int, int, int], int] = {}
    return [
        [_take(receives, seen, (rank, f.peer, 0), name) if f.kind == SEND else None for f in mine]
        for rank, mine in enumerate(all_flights)
    ]
