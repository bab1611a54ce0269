"""A simulated collective before it runs: flights with their lengths, pieces and costs, tied to what they wait for."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Optional

from lwcc.fabric import Costs, Network
from lwcc.flights import ADD, FOLDED, LOCAL, SEND, STAGED, TERM, Flight
from lwcc.symmetry import Cast

PIECE = 256 << 10
PIECES_LIMIT = 100_000  # of one call; more are made longer
CACHED, UNCACHED = 512 << 10, 128 << 20  # bytes that processors' caches hold all of, hardly any of


class Call(NamedTuple):
    """A collective.

    Attributes:
        who: the simulated ranks and their flights.
        nbytes: its payload.
        copied: bytes that a rank copies before it begins.
        memory: bytes of all arrays of a rank, where they are more than the payload.
    """

    who: Cast
    nbytes: float
    copied: float = 0.0
    memory: float = 0.0


class Moving:
    """A flight of a rank under way. Pieces have arrived, are started, and are done."""

    __slots__ = ("arrived", "at", "done", "feeds", "flight", "nbytes", "needs", "npieces", "number", "per_byte",
                 "per_piece", "place", "queued", "receive", "sender", "started")  # fmt: skip

    def __init__(self, place: int, number: int, flight: Flight) -> None:
        self.place, self.number, self.flight = place, number, flight
        self.at = self.nbytes = self.per_byte = self.per_piece = 0.0
        self.npieces = self.started = self.done = self.arrived = 0
        self.queued = False
        self.needs: list[tuple[Moving, float]] = []  # what must be through first, and where it begins after mine
        self.feeds: list[Moving] = []  # what waits for it
        self.receive: Optional[Moving] = None  # of a send
        self.sender: Optional[Moving] = None  # of a receive

    def clear(self, piece: float) -> bool:
        """Have all flights before it passed what its next piece touches?"""
        end = min((self.started + 1) * piece, self.nbytes)
        for g, after in self.needs:
            if g.done < g.npieces and (self.flight.n == 0 or max(after + g.done * piece, 0.0) < end - 1e-9):
                return False
        self.needs = [need for need in self.needs if need[0].done < need[0].npieces]
        return True


class Prices:
    """What flights cost on a network."""

    def __init__(self, costs: Costs, network: Network) -> None:
        self.costs, self.network = costs, network

    def near(self, rank: int, peer: int) -> bool:
        """Do they share a node?"""
        return self.network.node_of(rank) == self.network.node_of(peer)

    def spill(self, nbytes: float) -> float:
        """Return the factor of costs for a byte: the data of ranks that share caches may be larger than these."""
        net = self.network
        together = nbytes * (net.ranks if net.host_cores else net.ranks / net.nodes)
        way = math.log2(max(together, 1) / CACHED) / math.log2(UNCACHED / CACHED)
        return 1 + self.costs.spill * min(max(way, 0.0), 1.0)

    def of(self, flight: Flight, rank: int, terms: int) -> tuple[float, float]:
        """Return seconds for a piece and for a byte; terms: of a fold, beside its own."""
        c, kind = self.costs, flight.kind
        near = flight.peer >= 0 and self.near(rank, flight.peer)
        if kind == SEND:
            return c.send_s, c.near_s_per_byte if near else c.send_s_per_byte
        if kind in (LOCAL, FOLDED):
            return 0.0, c.copy_s_per_byte if kind == LOCAL else c.add_s_per_byte * terms
        more = {ADD: c.add_s_per_byte, STAGED: c.copy_s_per_byte}.get(kind, 0.0)
        return c.recv_s, more + (0.0 if near else c.recv_s_per_byte)


def build(call: Call, piece: float, prices: Prices) -> list[list[Moving]]:
    """Return the flights of each simulated rank."""
    who = call.who
    cut, spill = _cut(call), prices.spill(max(call.nbytes, call.memory))
    places = [[Moving(place, n, f) for n, f in enumerate(mine)] for place, mine in enumerate(who.flights)]
    for place, mine in enumerate(places):
        for m in mine:
            _measure(m, cut, piece)
        for m, target in zip(mine, who.to[place]):
            if target is not None:
                m.receive = places[target[0]][target[1]]
                m.receive.sender = m
            terms = sum(mine[g].flight.kind == TERM for g, _ in m.flight.needs) if m.flight.kind == FOLDED else 0
            m.per_piece, m.per_byte = prices.of(m.flight, who.ranks[place], terms)
            m.per_byte *= spill
            _tie(m, mine, call)
    return places


def _measure(m: Moving, cut: Sequence[float], piece: float) -> None:
    f, last = m.flight, len(cut) - 1
    m.at = cut[f.chunk]
    m.nbytes = cut[f.chunk + f.n] - m.at if f.chunk + f.n <= last else f.n * cut[last] / last
    m.npieces = max(1, math.ceil(m.nbytes / piece)) if m.nbytes > 0 or f.n == 0 else 0


def _tie(m: Moving, mine: Sequence[Moving], call: Call) -> None:
    for number, after in m.flight.needs:
        g = mine[number]
        if g.npieces:
            m.needs.append((g, g.at - m.at if call.who.exact else after * call.nbytes / call.who.chunks))
            g.feeds.append(m)


def lanes(mine: Sequence[Moving]) -> dict[int, deque[Moving]]:
    """Return the sends of a rank in order, by peer."""
    found: dict[int, deque[Moving]] = {}
    for m in mine:
        if m.flight.kind == SEND and m.npieces:
            found.setdefault(m.flight.peer, deque()).append(m)
    return found


def _cut(call: Call) -> list[float]:
    """Where chunks begin, in bytes; exact: of four-byte elements, as the executor cuts (cut_evenly of exec.c)."""
    nbytes, chunks = call.nbytes, call.who.chunks
    if not call.who.exact:
        return [nbytes * i / chunks for i in range(chunks + 1)]
    count = int(nbytes) // 4
    unit = 16 if count >= chunks * 64 else 1
    units = count // unit
    return [*(float(units * i // chunks * unit * 4) for i in range(chunks)), float(count * 4)]


def piece_of(call: Call) -> float:
    """Return the length of a piece: the executor's, or more if there are too many of them."""
    each, piece = call.nbytes / call.who.chunks, float(PIECE)
    while sum(f.n * each // piece for mine in call.who.flights for f in mine) > PIECES_LIMIT:
        piece *= 2
    return piece
