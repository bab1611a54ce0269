"""Figures for papers, by matplotlib: SVG and PDF files of a chart."""

from __future__ import annotations

import os
from typing import Any

from lwcc import charts

MISSING = "figures need matplotlib: pip install 'lwcc[report]'"


def save(chart: charts.Chart, path: str) -> None:
    """Draw a chart into a file whose ending says its kind (.svg, .pdf).

    Raises:
        ValueError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError(f"lwcc report: {MISSING} ({error})") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    height = 3.2 if chart.lines else 0.9 + 0.32 * len(chart.bars)
    settings = {"svg.fonttype": "none", "svg.hashsalt": "lwcc", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}
    with matplotlib.rc_context(settings):
        figure, axes = pyplot.subplots(figsize=(6.4, height), layout="constrained")
        (_lines if chart.lines else _bars)(axes, chart)
        axes.set_title(chart.axes.title, fontsize=9)
        axes.set_xlabel(chart.axes.x)
        axes.set_ylabel(chart.axes.y)
        if len(chart.lines) > 1 or len({p.kind for _, parts in chart.bars for p in parts}) > 1:
            figure.legend(loc="outside right upper", frameon=False, fontsize=8)
        kind = os.path.splitext(path)[1][1:]
        figure.savefig(path, metadata={"Date": None} if kind == "svg" else {"CreationDate": None})
        pyplot.close(figure)


def _lines(axes: Any, chart: charts.Chart) -> None:
    for number, line in enumerate(chart.lines):
        colour = charts.COLOURS[number % len(charts.COLOURS)]
        x, y = [p.x for p in line.points], [p.y for p in line.points]
        mark = "o" if len(x) < 40 else ""
        axes.plot(x, y, marker=mark, markersize=3, linewidth=1.3, color=colour, label=line.name)
        spread = [p for p in line.points if p.low is not None and p.high is not None]
        axes.vlines([p.x for p in spread], [p.low for p in spread], [p.high for p in spread], color=colour, linewidth=1)
    if chart.axes.log_y:
        axes.set_yscale("log")
        ticks = charts.y_ticks(chart)
        axes.set_yticks(list(ticks), list(ticks.values()))
    if chart.axes.log_x:
        axes.set_xscale("log")
        ticks = charts.x_ticks(chart)
        axes.set_xticks(list(ticks), list(ticks.values()))
        axes.minorticks_off()


def _bars(axes: Any, chart: charts.Chart) -> None:
    kinds = list(dict.fromkeys(p.kind for _, parts in chart.bars for p in parts))
    for row, (_, parts) in enumerate(chart.bars):
        start = 0.0
        for part in parts:
            number = kinds.index(part.kind)
            colour = charts.COLOURS[(number if len(kinds) > 1 else 0) % len(charts.COLOURS)]
            axes.barh(row, part.value, left=start, height=0.7, color=colour, label=part.kind if row == 0 else None)
            start += part.value
    axes.set_yticks(range(len(chart.bars)), [name for name, _ in chart.bars])
    axes.invert_yaxis()
