"""The report as one HTML file: figures by Bokeh, with its script within the file, the frame by jinja2."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lwcc import charts

if TYPE_CHECKING:
    from lwcc.sections import Rows, Section

MISSING = "a page needs bokeh and jinja2: pip install 'lwcc[report]' (--markdown and --latex need nothing)"
INK = "#7d8590"  # legible on white and on black: a figure is drawn once, the page is light or dark

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,"><title>LWCC report</title>
<style>:root{--ink:#111;--grid:#ddd;--paper:#fff;--link:#0b63c4}
@media(prefers-color-scheme:dark){:root{--ink:#eee;--grid:#444;--paper:#181a1b;--link:#6fb1ff}}
@media print{:root{--ink:#111;--grid:#ddd;--paper:#fff}.csv,nav{display:none}.figure,tr{break-inside:avoid}}
body{background:var(--paper);color:var(--ink);font:15px/1.45 system-ui,sans-serif;max-width:1100px;margin:2em auto;
padding:0 1em}table{border-collapse:collapse;margin:.4em 0 1em;font-variant-numeric:tabular-nums}
th,td{padding:.15em .7em;text-align:right;border-bottom:1px solid var(--grid)}
th:first-child,td:first-child{text-align:left}.scroll{overflow-x:auto}a{color:var(--link)}
td.better{color:#2b8a3e;font-weight:600}td.worse{color:#c4410b;font-weight:600}
.csv{font-size:12px;margin-left:.7em}.about{opacity:.8;font-size:13px}.figure{max-width:860px;margin:.6em 0}
.warning{color:#c4410b;font-weight:600}code{font-size:12.5px;overflow-wrap:anywhere}
</style>{{ head }}</head><body><h1>LWCC report</h1>
<nav><a class="csv" download="lwcc-report.json" href="data:application/json;base64,{{ json64 }}">all data (JSON)</a>
{% for s in sections %}<a class="csv" href="#s{{ loop.index }}">{{ s.title }}</a>{% endfor %}</nav>
{% for s in sections %}<section id="s{{ loop.index }}"><h2>{{ s.title }}</h2>
{% for text in s.warnings %}<p class="warning">warning: {{ text }}</p>{% endfor %}
<p class="about">{{ s.about }}</p>{% if s.command %}<p class="about"><code>{{ s.command }}</code></p>{% endif %}
{% for div in s.divs %}<div class="figure">{{ div }}</div>{% endfor %}
{% for table in s.tables %}<h3>{{ table.title }}
<a class="csv" download="{{ table.name }}.csv" href="data:text/csv;base64,{{ table.csv }}">CSV</a></h3>
<div class="scroll"><table><thead><tr>{% for cell in table.rows[0] %}<th>{{ cell }}</th>{% endfor %}</tr></thead><tbody>
{% for row in table.rows[1:] %}<tr>{% for cell in row %}<td{% if cell in marks %} class="{{ marks[cell] }}"{% endif %}>
{{- cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>{% endfor %}</section>{% endfor %}
<script type="application/json" id="data">{{ data }}</script>{{ script }}</body></html>
"""
_MARKS = {"better": "better", "LWCC faster": "better", "worse": "worse", "LWCC slower": "worse"}


def html(records: Sequence[dict[str, Any]], sections: Sequence[Section]) -> str:
    """Return the page.

    Raises:
        ValueError: Bokeh or jinja2 is not installed.
    """
    try:
        from bokeh.embed import components
        from bokeh.resources import Resources
        from jinja2 import Environment
        from markupsafe import Markup
    except ImportError as error:
        raise ValueError(f"lwcc report: {MISSING} ({error})") from None
    drawn = {f"{i}.{name}": _draw(chart) for i, s in enumerate(sections) for name, chart in s.pictures}
    script, divs = components(drawn) if drawn else ("", {})
    shown = [
        {**s._asdict(), "tables": [_table(title or s.title, rows) for title, rows in s.tables],
         "divs": [Markup(divs[f"{i}.{name}"]) for name, _ in s.pictures]}
        for i, s in enumerate(sections)
    ]  # fmt: skip
    data = json.dumps(records)
    head = Resources(mode="inline", components=["bokeh"]).render() if drawn else ""
    template = Environment(autoescape=True).from_string(_PAGE)
    text = template.render(
        sections=shown, marks=_MARKS, head=Markup(head), script=Markup(script),
        data=Markup(data.replace("<", "\\u003c")), json64=base64.b64encode(data.encode()).decode(),
    )  # fmt: skip
    return f"{text}\n"


def _table(title: str, rows: Rows) -> dict[str, Any]:
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    name = re.sub(r"[^A-Za-z0-9]+", "-", title).strip("-")
    return {"title": title, "rows": rows, "name": name, "csv": base64.b64encode(out.getvalue().encode()).decode()}


def _draw(chart: charts.Chart) -> Any:
    from bokeh.models import HoverTool
    from bokeh.plotting import figure

    axes, extra = chart.axes, {}
    if chart.bars:
        names = [name for name, _ in chart.bars]
        extra = {"y_range": list(reversed(names)), "height": 110 + 26 * len(names)}
    kinds = {"x_axis_type": "log" if axes.log_x else "linear", "y_axis_type": "log" if axes.log_y else "linear"}
    if chart.bars:
        del kinds["y_axis_type"]
    hover = HoverTool(tooltips=[("", "@label")], renderers=[])
    plot = figure(
        title=axes.title, x_axis_label=axes.x, y_axis_label=axes.y, sizing_mode="stretch_width",
        tools=[hover, "pan", "box_zoom", "reset", "save"], **{"height": 380, **kinds, **extra},
    )  # fmt: skip
    hover.renderers = (_bars if chart.bars else _lines)(plot, chart)
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    _style(plot, chart)
    return plot


def _lines(plot: Any, chart: charts.Chart) -> list[Any]:
    from bokeh.models import ColumnDataSource, Legend, LegendItem

    marked, items = [], []
    for number, line in enumerate(chart.lines):
        colour = charts.COLOURS[number % len(charts.COLOURS)]
        columns = {key: [getattr(p, key) for p in line.points] for key in ("x", "y")}
        columns["label"] = [f"{line.name}: {p.label}" for p in line.points]
        source = ColumnDataSource(columns)
        glyphs = [plot.line("x", "y", source=source, color=colour, line_width=2)]
        glyphs.append(plot.scatter("x", "y", source=source, color=colour, size=6 if len(line.points) < 60 else 3))
        marked.append(glyphs[-1])
        spread = [p for p in line.points if p.low is not None and p.high is not None]
        if spread:
            x = [p.x for p in spread]
            ends = ([p.low for p in spread], [p.high for p in spread])
            glyphs.append(plot.segment(x, ends[0], x, ends[1], color=colour, line_width=1.5))
        items.append(LegendItem(label=line.name, renderers=glyphs))
    if len(items) > 1:
        plot.add_layout(Legend(items=items, click_policy="hide"), "right")
    return marked


def _bars(plot: Any, chart: charts.Chart) -> list[Any]:
    from bokeh.models import ColumnDataSource, Legend, LegendItem

    kinds = list(dict.fromkeys(p.kind for _, parts in chart.bars for p in parts))
    columns: dict[str, dict[str, list[Any]]] = {k: {"name": [], "left": [], "right": [], "label": []} for k in kinds}
    for name, parts in chart.bars:
        start = 0.0
        for part in parts:
            for key, value in zip(("name", "left", "right", "label"), (name, start, start + part.value, part.label)):
                columns[part.kind][key].append(value)
            start += part.value
    drawn = [
        plot.hbar("name", left="left", right="right", height=0.7, source=ColumnDataSource(columns[kind]),
                  color=charts.COLOURS[number % len(charts.COLOURS)])
        for number, kind in enumerate(kinds)
    ]  # fmt: skip
    if len(kinds) > 1:
        items = [LegendItem(label=kind, renderers=[glyph]) for kind, glyph in zip(kinds, drawn)]
        plot.add_layout(Legend(items=items), "right")
    plot.x_range.start = 0
    return drawn


def _style(plot: Any, chart: charts.Chart) -> None:
    """Colours for light and dark pages, and ticks at what was measured."""
    plot.background_fill_alpha = plot.border_fill_alpha = 0
    plot.outline_line_color = None
    plot.title.text_color = INK
    plot.grid.grid_line_color, plot.grid.grid_line_alpha = INK, 0.25
    for axis in plot.axis:
        axis.axis_label_text_color = axis.major_label_text_color = axis.axis_line_color = INK
        axis.major_tick_line_color = axis.minor_tick_line_color = INK
        axis.axis_label_text_font_style = "normal"
    for legend in plot.legend:
        legend.label_text_color, legend.background_fill_alpha, legend.border_line_alpha = INK, 0, 0
    for axis, logarithmic, ticks in (
        (plot.xaxis[0], chart.axes.log_x, charts.x_ticks),
        (plot.yaxis[0], chart.axes.log_y, charts.y_ticks),
    ):
        if chart.lines and logarithmic:
            found = ticks(chart)
            axis.ticker = list(found)
            axis.major_label_overrides = dict(found)
