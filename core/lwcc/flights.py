"""A rank's plan as the executor runs it over a wire (core/src/exec/wire.c): flights in the order of the rounds, and
which earlier flights each of them has to wait for."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from lwcc.plan import COPY, FOLD, RECV_COPY, RECV_REDUCE, REDUCE, Plan, Step
from lwcc.plan import SEND as SEND_STEP

SEND, RECV, STAGED, ADD, TERM, FOLDED, LOCAL = range(7)
KIND_NAMES = ("send", "receive", "receive", "receive and add", "receive", "add", "copy")


class Flight(NamedTuple):
    """What a step of a plan has to do.

    Attributes:
        kind: SEND; RECV into place; STAGED: receive, then copy; ADD: receive, then add; TERM: receive for the FOLDED
            that follows; LOCAL.
        peer: the other rank; -1: none.
        chunk, n: first chunk and how many; they may run over the end.
        needs: (number of an earlier flight, how many chunks after mine it begins) of those that must be through first.
        round: of the plan.
    """

    kind: int
    peer: int
    chunk: int
    n: int
    needs: tuple[tuple[int, int], ...]
    round: int


_Range = tuple[int, int, int, int]  # kind, peer, chunk, n


def of_plan(plan: Plan, join_wraps: bool = False) -> list[Flight]:
    """Return the flights of a plan; `join_wraps`: two messages that are one range cut at the buffer's end are one."""
    ranges: list[tuple[_Range, int]] = []
    begin = 0
    for number, end in enumerate(plan.ends):
        steps = plan.steps[begin:end]
        ordered = list(_ordered(plan, _joined(steps, plan.chunks) if join_wraps else steps))
        ranges += [(r, number) for r in ordered]
        begin = end
    needs = _barrier_needs(ranges) if plan.collective == "barrier" else _needs(plan, ranges)
    return [Flight(*r, need, number) for (r, number), need in zip(ranges, needs)]


def _joined(steps: list[Step], chunks: int) -> list[Step]:
    out: list[Step] = []
    for step in steps:
        last = out[-1] if out else None
        same = last is not None and (last.kind, last.peer) == (step.kind, step.peer) and step.kind <= RECV_REDUCE
        if last is not None and same and step.chunk == 0 and last.chunk + last.n == chunks and step.n:
            out[-1] = last._replace(n=last.n + step.n)
        else:
            out.append(step)
    return out


def _ordered(plan: Plan, steps: list[Step]) -> Iterator[_Range]:
    """Sends first, then receives, then the results of folds, then what stays within the rank: as open_round."""
    if len(steps) == 2 and steps[0].kind == SEND_STEP and steps[1].kind == RECV_REDUCE:  # the usual round, fast
        yield SEND, *steps[0][1:4]
        yield ADD, *steps[1][1:4]
        return
    me = plan.rank
    others = [r for r in range(plan.size) if r != me] if any(s.kind == FOLD for s in steps) else []
    begins = sorted(s.chunk for s in steps if s.kind == SEND_STEP)
    ends = sorted(s.chunk + s.n for s in steps if s.kind == SEND_STEP)
    for s in steps:
        if s.kind == SEND_STEP or (s.kind == FOLD and s.peer != me):
            yield SEND, s.peer, s.chunk, s.n
    for s in steps:
        if s.kind == RECV_REDUCE:
            yield ADD, s.peer, s.chunk, s.n
        elif s.kind == RECV_COPY:
            sent = bisect_left(begins, s.chunk + s.n) > bisect_right(ends, s.chunk) and plan.collective != "alltoall"
            yield STAGED if sent else RECV, s.peer, s.chunk, s.n
        elif s.kind == FOLD and s.peer == me:
            yield from ((TERM, r, s.chunk, s.n) for r in others)
            yield FOLDED, -1, s.chunk, s.n
    for s in steps:
        if s.kind == FOLD:
            yield from ((SEND, r, s.chunk, s.n) for r in others) if s.peer == me else [(RECV, s.peer, s.chunk, s.n)]
    for s in steps:
        if s.kind in (COPY, REDUCE):
            yield LOCAL, -1, s.chunk, s.n


def _barrier_needs(ranges: list[tuple[_Range, int]]) -> Iterator[tuple[tuple[int, int], ...]]:
    """A send waits for all receives before it."""
    received: list[tuple[int, int]] = []
    for number, ((kind, *_), _) in enumerate(ranges):
        yield tuple(received) if kind == SEND else ()
        if kind != SEND:
            received.append((number, 0))


def _needs(plan: Plan, ranges: list[tuple[_Range, int]]) -> Iterator[tuple[tuple[int, int], ...]]:
    """A read waits for who wrote last, a write also for the reads since: by parts of the buffer that no flight cuts."""
    if plan.collective == "alltoall":  # sends read the input, which nobody writes, and each block is written once
        yield from (() for _ in ranges)
        return
    chunks = plan.chunks
    cuts = sorted({c for (_, _, c, _), _ in ranges} | {(c + n) % chunks for (_, _, c, n), _ in ranges} | {0})
    index = {c: i for i, c in enumerate(cuts)}
    writer = [-1] * len(cuts)
    readers: list[list[int]] = [[] for _ in cuts]
    terms: list[int] = []
    for number, ((kind, _, chunk, n), _) in enumerate(ranges):
        if kind == TERM:
            terms.append(number)
            yield ()
            continue
        first, count = index[chunk], _parts(index, cuts, (chunk, n, chunks))
        found = set(terms) if kind == FOLDED else set()
        for i in range(first, first + count):
            part = i % len(cuts)
            if writer[part] >= 0:
                found.add(writer[part])
            if kind == SEND:
                readers[part].append(number)
            else:
                found.update(readers[part])
                writer[part], readers[part] = number, []
        if kind == FOLDED:
            terms = []
        yield tuple((g, _offset(ranges[g][0][2] - chunk, n, chunks)) for g in sorted(found))


def _parts(index: dict[int, int], cuts: list[int], where: tuple[int, int, int]) -> int:
    chunk, n, chunks = where
    if n >= chunks:
        return len(cuts)
    last = index[(chunk + n) % chunks] - index[chunk]
    return last if last > 0 or n == 0 else last + len(cuts)


def _offset(difference: int, n: int, chunks: int) -> int:
    after = difference % chunks
    return after if after < n else after - chunks
