"""What plans cost: rounds, bytes, the critical path, and seconds by the alpha-beta-gamma model, beside the best that
there can be and the built-in algorithms.

The model: a message takes alpha + nbytes * beta, adding takes gamma for each byte. A rank sends one message at a time
and receives one at a time (full duplex, one port); a round begins when the one before is over on that rank.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lwcc import inspection, proof
from lwcc.authoring import AnyAlgorithm, BuiltIn
from lwcc.drawing import steps
from lwcc.errors import PlanRefused, Unsupported
from lwcc.plan import FOLD, RECV_COPY, RECV_REDUCE, SEND, Plan

Model = tuple[float, float, float]  # seconds per message, per byte sent, per byte added
SHOWN_NBYTES = (4 << 10, 256 << 10, 16 << 20)


class Path(NamedTuple):
    """The longest chain of messages that wait for each other: how many, and the payloads on it."""

    messages: int
    payloads: float


class Bound(NamedTuple):
    """What no algorithm can beat, in the model: messages one after the other, payloads sent and added by some rank."""

    messages: int
    sent: float
    added: float


def bound(collective: str, size: int) -> Bound:
    """Return the lower bound for a collective of `size` ranks (broadcast: of one payload to all)."""
    deep, share = math.ceil(math.log2(size)), (size - 1) / size
    return {
        "allreduce": Bound(deep, 2 * share, share),
        "reducescatter": Bound(deep, share, share),
        "allgather": Bound(deep, share, 0.0),
        "alltoall": Bound(1, share, 0.0),
        "broadcast": Bound(deep, 1.0, 0.0),
        "barrier": Bound(deep, 0.0, 0.0),
    }[collective]


def seconds(work: tuple[float, float, float], nbytes: int, model: Model) -> float:
    """Return the time of (messages, payloads sent, payloads added) for a payload of `nbytes`."""
    return work[0] * model[0] + nbytes * (work[1] * model[1] + work[2] * model[2])


def finish(plans: Sequence[Plan], nbytes: int, model: Model) -> float:
    """Return the seconds until the last rank is done, by walking all plans side by side; they have been proved."""
    walk = _Walk(plans, nbytes, model)
    while sum(walk.advance(rank) for rank in range(len(plans))):
        continue
    return max(walk.now)


class _Walk:
    """All ranks' plans under way on a clock."""

    def __init__(self, plans: Sequence[Plan], nbytes: int, model: Model) -> None:
        self.work = [_by_round(plan) for plan in plans]
        self.now = [0.0] * len(plans)  # when each rank's last finished round was over
        self.round = [0] * len(plans)
        self.sent = [-1] * len(plans)  # the round whose messages each rank has sent last
        self.out = [0.0] * len(plans)  # when it had sent them
        self.arrivals: dict[tuple[int, int], list[float]] = {}
        self.alpha = model[0]
        self.beta, self.gamma = (rate * nbytes / plans[0].chunks for rate in model[1:])  # per chunk

    def advance(self, rank: int) -> bool:
        """Run a rank's next rounds as far as its messages have arrived; tell whether any was."""
        moved = False
        while self.round[rank] < len(self.work[rank]) and self._try_round(rank):
            moved = True
        return moved

    def _try_round(self, rank: int) -> bool:
        work = self.work[rank][self.round[rank]]
        if self.sent[rank] < self.round[rank]:
            self._send(rank, work)
        receives = [(peer, n, kind == RECV_REDUCE) for kind, peer, n in work if kind in (RECV_COPY, RECV_REDUCE)]
        wanted = Counter(peer for peer, _, _ in receives)
        if any(len(self.arrivals.get((peer, rank), ())) < n for peer, n in wanted.items()):
            return False
        port = self.now[rank]
        for peer, n, adds in receives:
            port = max(self.arrivals[peer, rank].pop(0), port + n * self.beta) + adds * n * self.gamma
        folds = [owned for kind, _, owned in work if kind == FOLD]
        self.now[rank] = max(self.out[rank], port)
        self.now[rank] += len(folds) * (self.alpha + self.beta) + sum(folds) * self.gamma
        self.round[rank] += 1
        return True

    def _send(self, rank: int, work: Sequence[tuple[int, int, int]]) -> None:
        clock = self.now[rank]
        for kind, peer, n in work:
            if kind == SEND:
                clock += self.alpha + n * self.beta
                self.arrivals.setdefault((rank, peer), []).append(clock)
        self.out[rank], self.sent[rank] = clock, self.round[rank]


def _by_round(plan: Plan) -> list[list[tuple[int, int, int]]]:
    """Return (kind, peer, chunks) by round. A fold is what it is over a wire, terms to its owner and the result back:
    an entry for each peer, where the owner has 1 for an addition."""
    out: list[list[tuple[int, int, int]]] = [[] for _ in plan.ends]
    for number, step in steps(plan):
        if step.kind == FOLD:
            mine = step.peer == plan.rank
            others = [r for r in range(plan.size) if r != plan.rank] if mine else [step.peer]
            out[number] += [(FOLD, other, int(mine)) for other in others]
        elif step.kind in (SEND, RECV_COPY, RECV_REDUCE):
            out[number].append((step.kind, step.peer, step.n))
    return out


def critical_path(plans: Sequence[Plan]) -> Path:
    """Return the longest chain: by messages alone, and the payloads on the chain that is longest by payloads."""
    return Path(round(finish(plans, 0, (1.0, 0.0, 0.0))), finish(plans, 1, (0.0, 1.0, 0.0)))


def report(algorithm: AnyAlgorithm, plans: Sequence[Plan], model: Model) -> list[str]:
    """Return the lines about cost that `lwcc plan` prints, with built-in algorithms beside it."""
    try:
        cost = proof.prove(plans, "", algorithm)
    except PlanRefused as error:
        return [f"the proof refuses it: {error}"]
    size, path, least = len(plans), critical_path(plans), bound(algorithm.collective, len(plans))
    lines = [
        f"proved for {size} ranks: {cost.rounds} rounds; the busiest rank sends {cost.sent:.4g} n and adds "
        f"{cost.reduced:.4g} n",
        f"critical path: {path.messages} messages, {path.payloads:.4g} n",
        f"no algorithm needs less than {least.messages} messages, {least.sent:.4g} n sent, {least.added:.4g} n added",
        "",
        f"estimate in us  {'':<21}" + "".join(f"{_nbytes(n):>12}" for n in SHOWN_NBYTES),
        _row(f"{algorithm.name} (this one)", [finish(plans, n, model) for n in SHOWN_NBYTES]),
        _row("lower bound", [seconds(least, n, model) for n in SHOWN_NBYTES]),
    ]
    return lines + list(_others(algorithm, size, model))


def _others(algorithm: AnyAlgorithm, size: int, model: Model) -> Iterator[str]:
    for name in inspection.algorithms(algorithm.collective):
        if isinstance(algorithm, BuiltIn) and name == algorithm.name:
            continue
        try:
            plans = BuiltIn(algorithm.collective, name).plans(size)
        except Unsupported:
            continue
        yield _row(name, [finish(plans, n, model) for n in SHOWN_NBYTES])


def _row(name: str, times: Sequence[float]) -> str:
    return f"  {name:<35}" + "".join(f"{1e6 * t:>12.1f}" for t in times)


def _nbytes(n: int) -> str:
    return f"{n >> 20} MiB" if n >= 1 << 20 else f"{n >> 10} KiB"
