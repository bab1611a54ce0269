"""Charts as SVG text: lines over logarithmic or plain axes, and bars. Colours are CSS variables: a page can be dark.

Every point carries a <title>, which browsers show when the pointer rests on it; no script is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Callable, NamedTuple, Optional

WIDTH, HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 150, 30, 46
COLOURS = 8  # --c0 .. --c7


class Point(NamedTuple):
    """One measurement; low and high are its spread."""

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


class _Scale:
    """Maps values to pixels, and knows its ticks."""

    def __init__(self, values: Sequence[float], logarithmic: bool, pixels: tuple[float, float], base: int) -> None:
        low, high = min(values), max(values)
        if not logarithmic:
            low, high = min(low, 0.0), high * 1.05 or 1.0
        elif low == high:
            low, high = low / 2, high * 2
        self.log, self.base, (self.first, self.last) = logarithmic, base, pixels
        self.low, self.high = (math.log10(low), math.log10(high)) if logarithmic else (low, high)

    def __call__(self, value: float) -> float:
        v = math.log10(value) if self.log else value
        return self.first + (v - self.low) / (self.high - self.low) * (self.last - self.first)

    def ticks(self) -> list[float]:
        """About five round values within the range."""
        if self.log:
            unit = math.log10(self.base)
            whole = range(math.ceil(self.low / unit - 1e-9), math.floor(self.high / unit + 1e-9) + 1)
            every = max(1, -(-len(whole) // 7))
            found = [float(self.base) ** k for k in whole if k % every == 0]
            return found if len(found) > 1 else [10**self.low, 10**self.high]
        step = 10 ** math.floor(math.log10((self.high - self.low) / 4))
        while (self.high - self.low) / step > 6:
            step *= 2
        return [step * k for k in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def text(x: float, y: float, words: str, extra: str = "") -> str:
    """One SVG text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" {extra}>{escape(words)}</text>'


def _frame(axes: Axes, xs: _Scale, ys: _Scale) -> list[str]:
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    parts = [text(_LEFT, 18, axes.title, 'class="title"')]
    for v in ys.ticks():
        y = ys(v)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(text(_LEFT - 6, y + 4, axes.show_y(v), 'text-anchor="end"'))
    for v in xs.ticks():
        x = xs(v)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(text(x, bottom + 16, axes.show_x(v), 'text-anchor="middle"'))
    parts.append(text((_LEFT + right) / 2, HEIGHT - 8, axes.x, 'text-anchor="middle"'))
    middle = (_TOP + bottom) / 2
    parts.append(text(14, middle, axes.y, f'text-anchor="middle" transform="rotate(-90 14 {middle:.0f})"'))
    return parts


def _draw(line: Line, colour: int, xs: _Scale, ys: _Scale, axes: Axes) -> list[str]:
    stroke = f'style="stroke:var(--c{colour % COLOURS})"'
    path = " ".join(f"{xs(p.x):.1f},{ys(p.y):.1f}" for p in line.points)
    parts = [f'<polyline class="line" {stroke} points="{path}"/>']
    for p in line.points:
        x = xs(p.x)
        if p.low is not None and p.high is not None and p.low > 0:
            parts.append(
                f'<line class="bar" {stroke} x1="{x:.1f}" x2="{x:.1f}" y1="{ys(p.low):.1f}" y2="{ys(p.high):.1f}"/>'
            )
        label = p.label or f"{line.name}: {axes.show_x(p.x)}, {axes.show_y(p.y)}"
        parts.append(
            f'<circle style="fill:var(--c{colour % COLOURS})" cx="{x:.1f}" cy="{ys(p.y):.1f}" r="3.5">'
            f"<title>{escape(label)}</title></circle>"
        )
    return parts


def lines(axes: Axes, series: Sequence[Line]) -> str:
    """Return a line chart; series without points are left out; "" if nothing is left."""
    shown = [
        Line(s.name, [p for p in s.points if (p.y > 0 or not axes.log_y) and (p.x > 0 or not axes.log_x)])
        for s in series
    ]
    shown = [s for s in shown if s.points]
    if not shown:
        return ""
    every = [p for s in shown for p in s.points]
    spread = [v for p in every for v in (p.low, p.high) if v is not None and (v > 0 or not axes.log_y)]
    xs = _Scale([p.x for p in every], axes.log_x, (_LEFT, WIDTH - _RIGHT), 2)
    ys = _Scale([*(p.y for p in every), *spread], axes.log_y, (HEIGHT - _BOTTOM, _TOP), 10)
    parts = _frame(axes, xs, ys)
    for number, one in enumerate(shown):
        parts += _draw(one, number, xs, ys, axes)
        y = _TOP + 14 + 18 * number
        parts.append(
            f'<rect style="fill:var(--c{number % COLOURS})" x="{WIDTH - _RIGHT + 14}" y="{y - 9}" width="12" '
            'height="4"/>'
        )
        parts.append(text(WIDTH - _RIGHT + 32, y - 3, one.name))
    return _svg(parts, HEIGHT, axes.title)


def bars(title: str, unit: str, values: Sequence[tuple[str, float, str]]) -> str:
    """Return horizontal bars: (name, value, what the pointer shows)."""
    if not values:
        return ""
    most = max(v for _, v, _ in values) or 1.0
    parts = [text(10, 18, title, 'class="title"')]
    for number, (name, value, label) in enumerate(values):
        y, width = 34 + 26 * number, value / most * (WIDTH - 340)
        parts.append(text(190, y + 13, name, 'text-anchor="end"'))
        parts.append(
            f'<rect style="fill:var(--c{number % COLOURS})" x="200" y="{y}" width="{width:.1f}" height="18">'
            f"<title>{escape(label)}</title></rect>"
        )
        parts.append(text(206 + width, y + 13, f"{value:.4g} {unit}"))
    return _svg(parts, 44 + 26 * len(values), title)


def _svg(parts: Sequence[str], height: int, title: str) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
    head += f'aria-label="{escape(title)}">'
    return head + "".join(parts) + "</svg>"


LIGHT = ("#0b63c4", "#c4410b", "#2b8a3e", "#8a2bb0", "#b08a00", "#0b8a8a", "#a0174b", "#555555")
DARK = ("#6fb1ff", "#ff9a66", "#7fd98f", "#d59af5", "#ffd666", "#66dddd", "#ff80ac", "#bbbbbb")
SHAPES = """svg{width:100%;max-width:720px;font:12px system-ui,sans-serif}svg text{fill:var(--ink)}
svg .title{font-weight:600;font-size:13px}.grid{stroke:var(--grid)}
.line{fill:none;stroke-width:2}.bar{stroke-width:1.5}"""


def palette(colours: Sequence[str], ink: str, grid: str, paper: str) -> str:
    """Return CSS variables for one kind of light."""
    found = "".join(f"--c{k}:{c};" for k, c in enumerate(colours))
    return f"{found}--ink:{ink};--grid:{grid};--paper:{paper}"


def alone(svg: str) -> str:
    """Return an SVG file for a paper: the same picture with its own colours."""
    style = f"<style>svg{{{palette(LIGHT, '#111', '#ddd', '#fff')}}}{SHAPES}</style>"
    return svg.replace(">", ">" + style, 1)
