"""Pictures of plans: the rounds as text, one rank's steps, and a drawing as SVG."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lwcc.plan import COPY, FOLD, KINDS, RECV_COPY, RECV_REDUCE, SEND, Plan, Step

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#5f5f5f")
_ROW, _COLUMN, _LEFT, _TOP = 46, 96, 74, 64
_SHOWN = 6  # chunks named beside an arrow


class Message(NamedTuple):
    """A send and its receive; rounds are each rank's own."""

    source: int
    target: int
    sent_in: int
    received_in: int
    chunk: int
    n: int
    reduces: bool


def steps(plan: Plan) -> Iterator[tuple[int, Step]]:
    """Yield (round, step) in order."""
    begin = 0
    for number, end in enumerate(plan.ends):
        for step in plan.steps[begin:end]:
            yield number, step
        begin = end


def messages(plans: Sequence[Plan]) -> list[Message]:
    """Return all messages, by the sender's round; those without a receive are left out (the proof tells)."""
    waiting: dict[tuple[int, int], list[tuple[int, Step]]] = {}
    for plan in plans:
        for number, step in steps(plan):
            if step.kind in (RECV_COPY, RECV_REDUCE):
                waiting.setdefault((step.peer, plan.rank), []).append((number, step))
    found = []
    for plan in plans:
        for number, step in steps(plan):
            queue = waiting.get((plan.rank, step.peer)) if step.kind == SEND else None
            if queue:
                received, at = queue.pop(0)
                ends = (plan.rank, step.peer, number, received)
                found.append(Message(*ends, at.chunk, step.n, at.kind == RECV_REDUCE))
    return sorted(found, key=lambda m: (m.sent_in, m.source, m.target))


def chunk_text(chunk: int, n: int) -> str:
    """Return "3", "3..5", or "-" for none."""
    return "-" if n == 0 else str(chunk) if n == 1 else f"{chunk}..{chunk + n - 1}"


def rounds(plans: Sequence[Plan]) -> list[str]:
    """Return the rounds as a table: a row for each rank, a column for each round.

    `2>1` sends chunk 2 to rank 1; `+5<3` receives chunk 5 from rank 3 and adds it, `=5<3` puts it in its place.
    """
    table = [[f"rank {plan.rank}", *([""] * max(len(p.ends) for p in plans))] for plan in plans]
    for plan in plans:
        for number, step in steps(plan):
            cell = table[plan.rank][number + 1]
            table[plan.rank][number + 1] = f"{cell} {_short(step)}".strip()
    head = ["", *(f"round {k}" for k in range(len(table[0]) - 1))]
    widths = [max(len(row[i]) for row in [head, *table]) for i in range(len(head))]
    title = f"{plans[0].collective} of {len(plans)} ranks in {plans[0].chunks} chunks"
    key = "2>1 send chunk 2 to rank 1; +5<3 receive 5 from rank 3 and add; =5<3 receive in place"
    lines = [" | ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in [head, *table]]
    return [title, key, "", *lines]


def _short(step: Step) -> str:
    chunk = chunk_text(step.chunk, step.n)
    if step.kind == SEND:
        return f"{chunk}>{step.peer}"
    if step.kind == FOLD:
        return f"fold {chunk}@{step.peer}"
    if step.kind in (RECV_COPY, RECV_REDUCE):
        return f"{'=' if step.kind == RECV_COPY else '+'}{chunk}<{step.peer}"
    return f"{step.source}{'=' if step.kind == COPY else '+'}>{chunk}"


def one_rank(plan: Plan) -> list[str]:
    """Return one rank's steps, a line each, with the author's file and line."""
    lines = [f"{plan.collective}: rank {plan.rank} of {plan.size}, {plan.chunks} chunks, {len(plan.ends)} rounds"]
    last = -1
    for i, (number, step) in enumerate(steps(plan)):
        if number != last:
            lines.append(f"round {number}")
            last = number
        way = "to" if step.kind == SEND else "on" if step.kind == FOLD else "from"
        other = f"chunk {step.source}" if step.kind not in (SEND, RECV_COPY, RECV_REDUCE, FOLD) else f"rank {step.peer}"
        file, line = plan.where[i]
        text = f"  step {i}: {KINDS[step.kind]} chunk {chunk_text(step.chunk, step.n)} {way} {other}"
        lines.append(f"{text:<48} {os.path.basename(file)}:{line}" if file else text)
    return lines


def places(plans: Sequence[Plan]) -> list[list[int]]:
    """Return the column of each rank's rounds: behind its round before, and no sooner than what it receives was sent.
    Plans that deadlock have no such order; then a rank's rounds are simply counted."""
    counted = [list(range(len(plan.ends))) for plan in plans]
    at, links = [list(row) for row in counted], messages(plans)
    for _ in range(sum(map(len, at)) + 1):
        late = [m for m in links if at[m.target][m.received_in] < at[m.source][m.sent_in]]
        if not late:
            return at
        for m in late:
            row = at[m.target]
            row[m.received_in] = max(row[m.received_in], at[m.source][m.sent_in])
            for k in range(m.received_in + 1, len(row)):
                row[k] = max(row[k], row[k - 1] + 1)
    return counted


def svg(plans: Sequence[Plan], name: str) -> str:
    """Return a drawing: ranks are rows, rounds columns, messages arrows; the colour is the (first) chunk's. A solid
    arrow is added where it arrives, a dashed one takes the place of what was there. Where ranks have rounds of their
    own, a column is a time."""
    at = places(plans)
    own = any(row != list(range(len(row))) for row in at)
    columns = max((row[-1] + 1 for row in at if row), default=0)
    width, height = _LEFT + _COLUMN * max(columns, 1) + 24, _TOP + _ROW * len(plans) + 36
    title = f"{name}: {plans[0].collective}, {len(plans)} ranks, {plans[0].chunks} chunks, {max(map(len, at))} rounds"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="11"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="22" font-size="14">{_escape(title)}</text><defs>',
    ]
    for i, colour in enumerate(_COLOURS):
        parts.append(
            f'<marker id="a{i}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
            f'<path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
        )
    parts.append("</defs>")
    for k in range(columns):
        parts.append(
            f'<text x="{_LEFT + _COLUMN * k + 30}" y="{_TOP - 22}" fill="#555">{"time" if own else "round"} {k}</text>'
        )
    for plan in plans:
        y = _TOP + _ROW * plan.rank
        parts.append(f'<text x="12" y="{y + 4}">rank {plan.rank}</text>')
        parts.append(f'<line x1="{_LEFT}" y1="{y}" x2="{width - 16}" y2="{y}" stroke="#ccc"/>')
        parts += _own_marks(plan, at[plan.rank])
    bundles: dict[tuple[int, ...], list[Message]] = {}
    for m in messages(plans):
        placed = m._replace(sent_in=at[m.source][m.sent_in], received_in=at[m.target][m.received_in])
        bundles.setdefault(m[:4], []).append(placed)
        parts.append(_arrow(placed))
    parts += map(_label, bundles.values())
    parts.append(f'<text x="12" y="{height - 10}" fill="#555">solid: added; dashed: copied; colour: chunk</text></svg>')
    return "\n".join(parts) + "\n"


def _own_marks(plan: Plan, at: Sequence[int]) -> Iterator[str]:
    """Draw folds and local steps as dots."""
    for number, step in steps(plan):
        if step.kind in (SEND, RECV_COPY, RECV_REDUCE):
            continue
        x, y = _LEFT + _COLUMN * at[number] + 20 + 9 * (step.chunk % 8), _TOP + _ROW * plan.rank
        yield (
            f'<circle cx="{x}" cy="{y}" r="4" fill="{_COLOURS[step.chunk % 8]}"><title>{KINDS[step.kind]} chunk '
            f"{chunk_text(step.chunk, step.n)}</title></circle>"
        )


def _ends(message: Message) -> tuple[int, int, int, int]:
    x1, x2 = _LEFT + _COLUMN * message.sent_in + 12, _LEFT + _COLUMN * message.received_in + _COLUMN - 16
    return x1, _TOP + _ROW * message.source, x2, _TOP + _ROW * message.target


def _label(bundle: Sequence[Message]) -> str:
    """Name the chunks of messages that go the same way; drawn one over the other, they could not be read."""
    x1, y1, x2, y2 = _ends(bundle[0])
    shown = [chunk_text(message.chunk, message.n) for message in bundle]
    text = ",".join(shown if len(shown) <= _SHOWN else [*shown[: _SHOWN - 1], "..."])
    x, y, colour = x1 + (x2 - x1) * 0.3, y1 + (y2 - y1) * 0.3 - 3, _COLOURS[bundle[-1].chunk % len(_COLOURS)]
    halo = 'paint-order="stroke" stroke="white" stroke-width="3"'
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle" {halo} fill="{colour}">{text}</text>'


def _arrow(message: Message) -> str:
    x1, y1, x2, y2 = _ends(message)
    number = message.chunk % len(_COLOURS)
    dashes = "" if message.reduces else ' stroke-dasharray="5 3"'
    verb = "adds" if message.reduces else "copies"
    text = f"rank {message.source} to {message.target}: {verb} chunk {chunk_text(message.chunk, message.n)}"
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{_COLOURS[number]}" stroke-width="1.5"{dashes} '
        f'marker-end="url(#a{number})"><title>{text}</title></line>'
    )


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")


def write_svg(path: str, plans: Sequence[Plan], name: str) -> None:
    """Write `svg` to a file; OSError if it can't be written."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(svg(plans, name))
