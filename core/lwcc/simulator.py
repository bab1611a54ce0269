"""The event simulator: flights of simulated ranks on a clock, through processors and ports.

A flight moves in pieces, as in core/src/exec/wire.c. A rank does one thing at a time: hand a piece to the network, or
take one that has come; of what it could do, that of the earliest flight. Ranks that share cores wait for one. A piece
passes the sender's port, uplinks, and the receiver's port, each of which is busy with it; streams take turns there.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

from lwcc import moving
from lwcc.fabric import PACKET_NBYTES, Costs, Network
from lwcc.flights import FOLDED, SEND, Flight
from lwcc.moving import Call, Moving, Prices

SEGMENT, SEGMENTS = 64 << 10, 4  # bytes of a piece that pass a port before another stream's turn; at most so many
SLICE_S = 3e-3  # of a core, before another rank that waits for it gets it


class Span(NamedTuple):
    """What a rank did: when, for the timeline. Seconds from the beginning."""

    rank: int
    begin: float
    end: float
    flight: Flight
    nbytes: float
    call: int


class Port:
    """A link's end: pieces pass one after the other; a burst may pass at once after a pause."""

    def __init__(self, s_per_byte: float, burst_nbytes: float) -> None:
        self.s_per_byte, self.credit = s_per_byte, burst_nbytes * s_per_byte
        self.full_at = self.credit  # when the shaper's bucket would be full; it starts empty
        self.lanes: dict[object, deque[tuple[Any, float]]] = {}  # what waits here, by message stream
        self.busy = False

    def take(self, now: float, nbytes: float) -> tuple[float, float]:
        """Let a piece pass; return when it begins and when it is through."""
        begin = max(now, self.full_at - self.credit)
        self.full_at = max(self.full_at, begin) + nbytes * self.s_per_byte
        return begin, max(begin, self.full_at - self.credit)


class _Rank:
    """One simulated rank. core: 0 waits for messages, 1 waits for a core, 2 runs."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.core, self.since = 0, 0.0
        self.todo: list[int] = []
        self.call, self.left = -1, 0
        self.began: list[float] = []
        self.ended: list[float] = []


class _Pool:
    """Cores that ranks share."""

    def __init__(self, cores: int) -> None:
        self.free = cores
        self.waiting: deque[int] = deque()


class Simulation:
    """One run of calls, one after the other."""

    def __init__(self, costs: Costs, network: Network, spans: Optional[list[Span]] = None) -> None:
        self.costs, self.network, self.spans = costs, network, spans
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.number = 0
        self.now = 0.0
        self.ranks: list[_Rank] = []
        self.calls: list[Call] = []
        self.moving: list[list[list[Moving]]] = []  # by call and place
        self.lanes: list[list[dict[int, deque[Moving]]]] = []
        self.piece: list[float] = []
        self.prices = Prices(costs, network)

    def run(self, calls: Sequence[Call]) -> list[list[tuple[float, float]]]:
        """Run calls in turn on every rank; return (begin, end) by call and simulated rank.

        Raises:
            RuntimeError: ranks wait for each other for ever, which the proof would have told.
        """
        self.calls = list(calls)
        self.ranks = [_Rank(rank) for rank in self.calls[0].who.ranks]
        self._place()
        for index in range(len(self.ranks)):
            self._want_core(index)
        while self.events:
            self.now, _, what, arguments = heapq.heappop(self.events)
            what(*arguments)
        stuck = [r.rank for r in self.ranks if len(r.ended) < len(self.calls)]
        if stuck:
            raise RuntimeError(f"lwcc simulate: ranks {stuck[:8]} wait for ever; see `lwcc check`")
        return [[(r.began[k], r.ended[k]) for r in self.ranks] for k in range(len(self.calls))]

    # ---- who shares what ----

    def _place(self) -> None:
        net, each = self.network, self.network.port_s_per_byte(self.costs)
        groups: dict[object, int] = {}
        for r in self.ranks:
            key: object = "host" if net.host_cores else net.node_of(r.rank)
            groups[key] = groups.get(key, 0) + 1
        per_group = net.host_cores or net.cores
        crowded = {key for key, count in groups.items() if per_group and count > per_group}
        pools = {key: _Pool(per_group) for key in crowded}
        self.pool = [pools.get("host" if net.host_cores else net.node_of(r.rank)) for r in self.ranks]
        self.node = [net.node_of(r.rank) for r in self.ranks]
        self.out = {n: Port(each, net.burst_nbytes) for n in set(self.node)}
        self.into = {n: Port(each, net.burst_nbytes) for n in set(self.node)}
        up = each * net.oversubscription / max(net.leaf, 1)
        leaves = {n // net.leaf for n in self.node} if net.leaf else set()
        self.up = {leaf: Port(up, 0) for leaf in leaves}
        self.down = {leaf: Port(up, 0) for leaf in leaves}
        self.latency = self.costs.latency_s + net.delay_s
        self.headers = PACKET_NBYTES if net.rate else 0

    # ---- calls ----

    def _open(self, call: int) -> None:
        self.piece.append(moving.piece_of(self.calls[call]))
        self.moving.append(moving.build(self.calls[call], self.piece[call], self.prices))
        self.lanes.append([moving.lanes(mine) for mine in self.moving[call]])

    def _start_call(self, index: int) -> None:
        r = self.ranks[index]
        r.call += 1
        r.todo.clear()
        if r.call == len(self.moving):
            self._open(r.call)
        mine = self.moving[r.call][index]
        r.left = sum(m.npieces for m in mine)
        for m in mine:
            self._offer(index, m)

    # ---- a rank at work ----

    def _offer(self, index: int, m: Moving) -> None:
        """Put a flight on its rank's list if a piece of it can be moved now."""
        if not m.queued and self._can(index, m):
            m.queued = True
            heapq.heappush(self.ranks[index].todo, m.number)

    def _can(self, index: int, m: Moving) -> bool:
        if m.started >= m.npieces:
            return False
        kind = m.flight.kind
        if kind == SEND:
            if self.lanes[self.ranks[index].call][index][m.flight.peer][0] is not m:
                return False
            if m.receive is not None and m.receive.queued and m.receive.arrived > m.receive.started:
                return False  # the stream's window is full of what the receiver has had no time for
        elif kind < FOLDED and m.started >= m.arrived:
            return False
        return m.clear(self.piece[self.ranks[index].call])

    def _want_core(self, index: int) -> None:
        r, pool = self.ranks[index], self.pool[index]
        if r.core:
            return
        if pool is None or pool.free > 0:
            if pool is not None:
                pool.free -= 1
            r.core = 2
            self._at(self.costs.switch_s if pool is not None else 0.0, self._runs, index)
        else:
            r.core = 1
            pool.waiting.append(index)

    def _runs(self, index: int) -> None:
        self.ranks[index].since = self.now
        if self.ranks[index].call < 0:
            self._begin(index)
        else:
            self._work(index)

    def _begin(self, index: int) -> None:
        """Enter the next call: its time runs from here."""
        r = self.ranks[index]
        r.began.append(self.now)
        self._at(self.costs.start_s + self.calls[r.call + 1].copied * self.costs.copy_s_per_byte, self._enter, index)

    def _enter(self, index: int) -> None:
        self._start_call(index)
        self._work(index)

    def _work(self, index: int) -> None:
        """Do the next piece of work, or wait."""
        r = self.ranks[index]
        if r.left == 0 and r.call >= 0:
            r.ended.append(self.now)
            if r.call + 1 < len(self.calls):
                self._begin(index)
            else:
                self._yield_core(index)
            return
        pool = self.pool[index]
        if pool is not None and pool.waiting and self.now - r.since > SLICE_S:
            self._yield_core(index)
            if r.todo:
                self._want_core(index)
            return
        while r.todo:
            m = self.moving[r.call][index][r.todo[0]]
            if self._can(index, m):
                self._move(index, m)
                return
            m.queued = False
            heapq.heappop(r.todo)
        self._yield_core(index)

    def _yield_core(self, index: int) -> None:
        self.ranks[index].core = 0
        pool = self.pool[index]
        if pool is None:
            return
        if not pool.waiting:
            pool.free += 1
            return
        after = pool.waiting.popleft()
        self.ranks[after].core = 2
        self._at(self.costs.switch_s, self._runs, after)

    def _move(self, index: int, m: Moving) -> None:
        piece = self.piece[self.ranks[index].call]
        nbytes = min(piece, m.nbytes - m.started * piece)
        m.started += 1
        seconds = m.per_piece + nbytes * m.per_byte
        if self.spans is not None:
            r = self.ranks[index]
            self.spans.append(Span(r.rank, self.now, self.now + seconds, m.flight, nbytes, r.call))
        self._at(seconds, self._moved, index, m, nbytes)

    def _moved(self, index: int, m: Moving, nbytes: float) -> None:
        r = self.ranks[index]
        m.done += 1
        r.left -= 1
        if m.flight.kind == SEND:
            if m.done == m.npieces:
                lane = self.lanes[r.call][index][m.flight.peer]
                lane.popleft()
                if lane:
                    self._offer(index, lane[0])
            self._send(index, m, nbytes)
        elif m.sender is not None and m.sender.started < m.sender.npieces:
            self._wake(r.call, m.sender)
        for after in m.feeds:
            self._offer(index, after)
        self._work(index)

    # ---- messages ----

    def _at(self, after: float, what: Callable[..., None], *arguments: Any) -> None:
        self.number += 1
        heapq.heappush(self.events, (self.now + after, self.number, what, arguments))

    def _send(self, index: int, m: Moving, nbytes: float) -> None:
        r, peer, there = self.ranks[index], m.flight.peer, m.receive
        if there is None:
            return
        ends = (r.call, there)
        if self.prices.near(r.rank, peer):
            self._at(self.costs.near_s, self._arrive, *ends)
            return
        port = self.out[self.node[index]]
        path = [self.into[self.node[there.place]]]
        if self.network.leaf:
            mine, other = self.node[index] // self.network.leaf, self.network.node_of(peer) // self.network.leaf
            if mine != other:
                path = [self.up[mine], self.down[self.node[there.place] // self.network.leaf], *path]
        if not port.s_per_byte:
            self._at(self.latency, self._arrive, *ends)
            return
        count = max(1, min(SEGMENTS, int(-(-nbytes // SEGMENT))))
        lane = port.lanes.setdefault((index, peer), deque())
        lane.extend(((path, ends if i == count - 1 else None), (nbytes + self.headers) / count) for i in range(count))
        if not port.busy:
            self._serve(port)

    def _serve(self, port: Port) -> None:
        """Let the next piece pass: streams take turns."""
        port.busy = bool(port.lanes)
        if not port.lanes:
            return
        stream = next(iter(port.lanes))
        waiting = port.lanes.pop(stream)
        way, nbytes = waiting.popleft()
        if waiting:
            port.lanes[stream] = waiting
        begin, end = port.take(self.now, nbytes)
        self._at(end - self.now, self._serve, port)
        self._at(begin - self.now + self.latency, self._hop, way, nbytes, end + self.latency)

    def _hop(self, way: tuple[list[Port], Optional[tuple[int, Moving]]], nbytes: float, earliest: float) -> None:
        """The first byte has reached a port; the last one comes as late as the slowest port lets it."""
        path, ends = way
        begin, end = path[0].take(self.now, nbytes)
        earliest = max(earliest, end)
        if len(path) == 1 and ends is not None:
            self._at(earliest - self.now, self._arrive, *ends)
        elif len(path) > 1:
            self._at(begin - self.now, self._hop, (path[1:], ends), nbytes, earliest)

    def _arrive(self, call: int, m: Moving) -> None:
        m.arrived += 1
        self._wake(call, m)

    def _wake(self, call: int, m: Moving) -> None:
        """Something has changed for a flight, which its rank may wait for."""
        r = self.ranks[m.place]
        if r.call == call:
            self._offer(m.place, m)
            if r.todo:
                self._want_core(m.place)
