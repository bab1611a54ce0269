"""What a figure of a report shows, as data; drawn by `page.py` for the screen and by `figures.py` for papers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Callable, NamedTuple, Optional

TICKS = 8  # at most, on a logarithmic axis
COLOURS = ("#2f7ed8", "#d8662f", "#3a9e4f", "#a04fc4", "#b8940a", "#1a9c9c", "#d1407a", "#808080", "#7a5a3a", "#6a7f2f")


class Point(NamedTuple):
    """One measurement; low and high are its spread; label: shown where the pointer rests."""

    x: float
    y: float
    low: Optional[float] = None
    high: Optional[float] = None
    label: str = ""


class Line(NamedTuple):
    """A named series."""

    name: str
    points: Sequence[Point]


class Axes(NamedTuple):
    """Titles, kinds and formats of a chart's axes."""

    title: str
    x: str
    y: str
    log_x: bool = True
    log_y: bool = True
    show_x: Callable[[float], str] = lambda v: f"{v:g}"
    show_y: Callable[[float], str] = lambda v: f"{v:g}"


class Part(NamedTuple):
    """A part of a bar: its kind, its length, and what is shown where the pointer rests."""

    kind: str
    value: float
    label: str


class Chart(NamedTuple):
    """Lines, or horizontal bars of parts side by side: (name, parts)."""

    axes: Axes
    lines: Sequence[Line] = ()
    bars: Sequence[tuple[str, Sequence[Part]]] = ()


def lines(axes: Axes, series: Sequence[Line]) -> Optional[Chart]:
    """Return a line chart of what can be drawn on these axes; None if nothing can."""
    shown = []
    for one in series:
        points = [p for p in one.points if (p.y > 0 or not axes.log_y) and (p.x > 0 or not axes.log_x)]
        named = [p if p.label else p._replace(label=f"{axes.show_x(p.x)}, {axes.show_y(p.y)}") for p in points]
        if named:
            shown.append(Line(one.name, named))
    return Chart(axes, shown) if shown else None


def bars(title: str, unit: str, values: Sequence[tuple[str, Sequence[Part]]]) -> Optional[Chart]:
    """Return bars; None if there are none."""
    kept = [(name, parts) for name, parts in values if parts]
    return Chart(Axes(title, unit, "", False, False), bars=kept) if kept else None


def x_ticks(chart: Chart) -> dict[float, str]:
    """Return values and texts for a logarithmic x axis: those that were measured, or every n-th of them."""
    found = sorted({p.x for line in chart.lines for p in line.points})
    return {x: chart.axes.show_x(x) for x in found[:: -(-len(found) // TICKS)]}


def y_ticks(chart: Chart) -> dict[float, str]:
    """Return round values around what is drawn, with texts, for a logarithmic y axis: 1, 2, 5 or powers of ten."""
    every = [v for line in chart.lines for p in line.points for v in (p.y, p.low, p.high) if v is not None and v > 0]
    first, last = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
    step = -(-(last - first + 1) // TICKS)
    digits = (1, 2, 5) if last - first < 3 else (1,)
    values = [digit * 10.0**k for k in range(first, last + 1, step) for digit in digits]
    return {v: chart.axes.show_y(v) for v in values if v <= 10.0**last}
