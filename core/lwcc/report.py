"""`lwcc report`: runs of `lwcc bench --json` and `lwccrun --baseline` as one page, as markdown, LaTeX and SVG files.

The page is one file: pictures are SVG within it, the data is embedded, nothing is loaded and no script runs.
"""

from __future__ import annotations

import argparse
import base64
import csv
import io
import json
import os
import re
import statistics
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple, Optional

from lwcc import charts, verdict
from lwcc.launcher.measure import agreement, histogram, size_text

Rows = list[list[str]]  # the first one holds the heads


class Part(NamedTuple):
    """A section: tables with their titles, and charts as SVG."""

    title: str
    about: str
    tables: list[tuple[str, Rows]]
    pictures: list[tuple[str, str]]  # (file name, SVG)


def load(path: str) -> dict[str, Any]:
    """Read a run directory or a JSON file; ValueError if it is neither."""
    file_name = os.path.join(path, "run.json") if os.path.isdir(path) else path
    try:
        with open(file_name, encoding="utf-8") as file:
            record: dict[str, Any] = json.load(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"lwcc report: {path} is neither a run directory nor a file of lwcc bench: {error}") from None
    if not isinstance(record, dict) or record.get("kind") not in ("bench", "baseline"):
        raise ValueError(f"lwcc report: {file_name} was written by neither lwcc bench --json nor lwccrun --baseline")
    return {**record, "path": path}


def _seconds(value: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


# ---- collectives ----


def bench_title(record: dict[str, Any]) -> str:
    """What was measured, in a few words."""
    net = "" if record.get("net", "none") == "none" else f", network {record['net']}"
    return f"{record['collective']}, {record['np']} ranks{net}"


def _by_name(record: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in record["rows"]:
        found.setdefault(row["name"], []).append(row)
    return found


def verdicts(record: dict[str, Any]) -> Rows:
    """For each size: LWCC's best way against the best other engine, and what may be said."""
    rows: Rows = [["size", "LWCC", "best other", "which", "times faster", "verdict", "of limit"]]
    for size in sorted({row["size"] for row in record["rows"]}):
        here = [row for row in record["rows"] if row["size"] == size]
        ours = min((r for r in here if r["engine"] == "lwcc"), key=lambda r: r["t_med"], default=None)
        other = min((r for r in here if r["engine"] != "lwcc"), key=lambda r: r["t_med"], default=None)
        if ours is None or other is None:
            continue
        said, ratio = verdict.compare(ours["rounds"], other["rounds"])
        share = f"{ours['share']:.0%}" if ours["share"] else "-"
        rows.append([size_text(size), _seconds(ours["t_med"]), _seconds(other["t_med"]), other["name"], f"{ratio:.2f}",
                     said, share])  # fmt: skip
    return rows


def _best_other(record: dict[str, Any], size: int) -> float:
    """The shortest time of another engine; 0 if there is none."""
    others = (r["t_med"] for r in record["rows"] if r["size"] == size and r["engine"] != "lwcc")
    return float(min(others, default=0.0))


def bench_part(record: dict[str, Any], number: int) -> Part:
    """Latency, bus bandwidth and speed-up of one benchmark."""
    groups = _by_name(record)
    latency, busbw, faster = [], [], []
    for name, rows in groups.items():
        points = [
            charts.Point(r["size"], r["t_med"], min(r["rounds"]), max(r["rounds"]),
                         f"{name}, {size_text(r['size'])}: {_seconds(r['t_med'])}, {r['busbw'] / 1e9:.3g} GB/s")
            for r in rows if r["size"] > 0
        ]  # fmt: skip
        latency.append(charts.Line(name, points))
        factor = {r["size"]: r["busbw"] * r["t_med"] / 1e9 for r in rows}
        busbw.append(charts.Line(name, [
            p._replace(y=factor[p.x] / p.y, low=factor[p.x] / (p.high or p.y), high=factor[p.x] / (p.low or p.y))
            for p in points]))  # fmt: skip
    for name, rows in groups.items():
        if rows[0]["engine"] == "lwcc":
            best = {r["size"]: _best_other(record, r["size"]) for r in rows}
            faster.append(charts.Line(name, [
                charts.Point(r["size"], best[r["size"]] / r["t_med"]) for r in rows if best[r["size"]]]))  # fmt: skip
    title = bench_title(record)
    drawn = [
        ("latency", charts.lines(
            charts.Axes(f"Time of {title}", "size", "time", show_x=size_text, show_y=_seconds), latency)),
        ("busbw", charts.lines(
            charts.Axes(f"Bus bandwidth of {title}", "size", "GB/s", show_x=size_text), busbw)),
        ("speedup", charts.lines(
            charts.Axes("Times faster than the best other engine", "size", "ratio", True, False, size_text), faster)),
    ]  # fmt: skip
    heads = ["engine", "size", "t_med", "t_p99", "cv%", "algbw GB/s", "busbw GB/s", "of limit", "wrong"]
    every = [[r["name"], size_text(r["size"]), _seconds(r["t_med"]), _seconds(r["t_p99"]), f"{r['cv'] * 100:.0f}",
              f"{r['algbw'] / 1e9:.3f}", f"{r['busbw'] / 1e9:.3f}", f"{r['share']:.0%}", str(r["wrong"])]
             for r in record["rows"]]  # fmt: skip
    tables = [(f"All figures: {title}", [heads, *every])]
    if len(verdicts(record)) > 1:
        tables.insert(0, (f"Verdicts: {title}", verdicts(record)))
    about = (
        f"{record['machine']}, load before {record['load']:.1f}; {record['rounds']} interleaved rounds; bars: range of "
        "the rounds. "
        f"Command: {' '.join(record['argv'])}"
    )
    return Part(title, about, tables, [(f"{number}-{record['collective']}-{n}", svg) for n, svg in drawn if svg])


# ---- training ----


def _middle(values: Sequence[Any]) -> Optional[float]:
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None


def training_rows(record: dict[str, Any]) -> Rows:
    """One row for each engine of a training run."""
    rows: Rows = [
        ["engine", "samples/s", "x LWCC", "verdict", "step", "p90", "exposed", "communication", "loss", "losses"]
    ]
    names = list(record["settings"])
    runs = {name: [r for r in record["runs"] if r["variant"] == name] for name in names}
    base = [1 / r["samples_per_s"] for r in runs[names[0]] if r["samples_per_s"]]
    for name in names:
        speeds = [r["samples_per_s"] for r in runs[name] if r["samples_per_s"]]
        said, ratio = verdict.compare(base, [1 / s for s in speeds]) if base and speeds else ("-", None)
        first = runs[name][0]
        agree = "-" if name == names[0] else agreement(runs[names[0]][0]["losses"], first["losses"])[0]
        times = [_middle([r[key] for r in runs[name]]) for key in
                 ("step_median_s", "step_p90_s", "exposed_s", "communication_s")]  # fmt: skip
        rows.append([
            name, f"{statistics.median(speeds):.0f}" if speeds else f"exit {first['code']}",
            "-" if ratio is None else f"{1 / ratio:.2f}",
            "-" if name == names[0] else {"better": "LWCC faster", "worse": "LWCC slower"}.get(said, said),
            *("-" if t is None else _seconds(t) for t in times),
            f"{first['losses'][-1]:.5g}" if first["losses"] else "-", agree,
        ])  # fmt: skip
    return rows


def training_part(record: dict[str, Any], number: int) -> Part:
    """Throughput, losses and step times of one training run."""
    last_first = {run["variant"]: run for run in reversed(record["runs"])}
    firsts = {name: last_first[name] for name in record["settings"] if name in last_first}
    script = os.path.basename(record["command"][0])
    title = f"{script}, {record['np']} ranks" + (f", network {record['net']}" if record.get("net") else "")
    speeds = [(name, _middle([r["samples_per_s"] for r in record["runs"] if r["variant"] == name])) for name in firsts]
    pictures = [
        ("throughput", charts.bars(f"Throughput of {title}", "samples/s",
                                   [(n, v, f"{n}: {v:.5g} samples/s") for n, v in speeds if v])),
        ("loss", charts.lines(
            charts.Axes(f"Losses as printed: {title}", "line", "loss", False, False),
            [charts.Line(n, [charts.Point(i + 1, v) for i, v in enumerate(r["losses"])]) for n, r in firsts.items()])),
        ("steps", charts.lines(
            charts.Axes("Time of each step", "step", "ms", False, False),
            [charts.Line(n, [charts.Point(i + 1, v * 1e3) for i, v in enumerate(_thin(r["step_s"]))])
             for n, r in firsts.items()])),
        ("exposed", charts.bars("Waiting for communication, by rank", "s", [
            (f"{n}, rank {k['rank']}", k["exposed_s"], f"{k['exposed_s']:.3g} s of {r['seconds']:.3g} s")
            for n, r in firsts.items() for k in r.get("ranks", [])][:32])),
    ]  # fmt: skip
    sizes = [["engine", "allreduces by size (upper bounds)"]]
    sizes += [[name, histogram(run["allreduces"])] for name, run in firsts.items() if run["allreduces"]]
    settings = [["engine", "settings"], *([name, text] for name, text in record["settings"].items())]
    about = f"{record['machine']}{', ' + record['mpi'] if record['mpi'] else ''}. Command: {' '.join(record['argv'])}"
    tables = [(title, training_rows(record)), ("Sizes", sizes), ("Settings", settings)]
    return Part(title, about, tables, [(f"{number}-training-{n}", svg) for n, svg in pictures if svg])


def _thin(values: Sequence[float]) -> list[float]:
    """At most 400 steps, evenly taken."""
    return list(values[:: max(1, len(values) // 400)])


def scaling(records: Sequence[dict[str, Any]]) -> Rows:
    """Efficiency against one rank, where the same command ran with several numbers of ranks."""
    rows: Rows = [["command", "engine", "ranks", "samples/s", "efficiency"]]
    found: dict[tuple[str, str], dict[int, float]] = {}
    for record in records:
        for name in record["settings"] if record["kind"] == "baseline" else ():
            speed = _middle([r["samples_per_s"] for r in record["runs"] if r["variant"] == name])
            if speed:
                found.setdefault((" ".join(record["command"]), name), {})[record["np"]] = speed
    for (command, name), speeds in found.items():
        if len(speeds) > 1:
            least = min(speeds)
            rows += [[command, name, str(n), f"{s:.0f}", f"{s / n / (speeds[least] / least):.0%}"]
                     for n, s in sorted(speeds.items())]  # fmt: skip
    return rows


def overview(records: Sequence[dict[str, Any]]) -> Rows:
    """The verdict table: one row for each benchmark and training run."""
    rows: Rows = [["measurement", "better", "noise", "worse", "best gain", "wrong results"]]
    for record in records:
        if record["kind"] == "bench":
            said = verdicts(record)[1:]
            title, bad = bench_title(record), sum(r["wrong"] for r in record["rows"])
            kinds, gains = [r[5] for r in said], [float(r[4]) for r in said]
        else:
            table = training_rows(record)[2:]
            title, bad = f"{os.path.basename(record['command'][0])}, {record['np']} ranks", 0
            kinds = [{"LWCC faster": "better", "LWCC slower": "worse"}.get(r[3], r[3]) for r in table]
            gains = [1 / float(r[2]) for r in table if r[2] not in ("-", "0.00")]
        counts = [str(kinds.count(kind)) for kind in ("better", "noise", "worse")]
        rows.append([title, *counts, f"{max(gains):.2f}x" if gains else "-", str(bad)])
    return rows


def parts_of(records: Sequence[dict[str, Any]]) -> list[Part]:
    """All sections, the overview first."""
    about = f"A verdict needs {verdict.LEAST} runs or rounds of each, ranges that do not touch, and medians "
    about += f"{verdict.MARGIN:.0%} apart; all else is noise."
    parts = [Part("Verdicts", about, [("LWCC against the best other engine", overview(records))], [])]
    if len(scaling(records)) > 1:
        parts.append(
            Part("Scaling", "Efficiency: speed per rank against the fewest ranks.", [("", scaling(records))], [])
        )
    for number, record in enumerate(records, 1):
        parts.append((bench_part if record["kind"] == "bench" else training_part)(record, number))
    return parts


def _csv_link(rows: Rows, title: str) -> str:
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    data = base64.b64encode(out.getvalue().encode()).decode()
    name = re.sub(r"[^A-Za-z0-9]+", "-", title or "table").strip("-")
    return f'<a class="csv" download="{name}.csv" href="data:text/csv;base64,{data}">CSV</a>'


_STYLE = f"""<style>:root{{{charts.palette(charts.LIGHT, "#111", "#ddd", "#fff")}}}
@media(prefers-color-scheme:dark){{:root{{{charts.palette(charts.DARK, "#eee", "#444", "#181a1b")}}}}}
@media print{{:root{{{charts.palette(charts.LIGHT, "#111", "#ddd", "#fff")}}}.csv{{display:none}}
section{{break-inside:avoid}}}}
body{{background:var(--paper);color:var(--ink);font:15px/1.45 system-ui,sans-serif;max-width:1100px;margin:2em auto;
padding:0 1em}}table{{border-collapse:collapse;margin:.4em 0 1em;font-variant-numeric:tabular-nums}}
th,td{{padding:.15em .7em;text-align:right;border-bottom:1px solid var(--grid)}}
th:first-child,td:first-child{{text-align:left}}
.scroll{{overflow-x:auto}}.csv{{font-size:12px;margin-left:.7em;color:var(--c0)}}.about{{opacity:.75;font-size:13px}}
{charts.SHAPES}</style>"""


def html(records: Sequence[dict[str, Any]]) -> str:
    """Return the page."""
    body = []
    for part in parts_of(records):
        body.append(f'<section><h2>{escape(part.title)}</h2><p class="about">{escape(part.about)}</p>')
        body += [svg for _, svg in part.pictures]
        for title, rows in part.tables:
            body.append(f"<h3>{escape(title)}{_csv_link(rows, title)}</h3>" + '<div class="scroll"><table>')
            for number, row in enumerate(rows):
                tag = "th" if number == 0 else "td"
                body.append("<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) + "</tr>")
            body.append("</table></div>")
        body.append("</section>")
    data = json.dumps(records).replace("<", "\\u003c")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>LWCC report</title>{_STYLE}</head><body><h1>LWCC report</h1>{''.join(body)}"
        f'<script type="application/json" id="data">{data}</script></body></html>\n'
    )


def markdown(records: Sequence[dict[str, Any]]) -> str:
    """Return the tables as markdown."""
    text = ["# LWCC report"]
    for part in parts_of(records):
        text += [f"\n## {part.title}", part.about]
        for title, rows in part.tables:
            text += [f"\n### {title}" if title else "", "| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
            text += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows[1:]]
    return "\n".join(text) + "\n"


def latex(records: Sequence[dict[str, Any]]) -> str:
    """Return the tables as LaTeX (booktabs)."""
    special = {c: f"\\{c}" for c in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\^{}", "\\": r"\textbackslash{}"}
    clean = str.maketrans(special)
    text = []
    for part in parts_of(records):
        for title, rows in part.tables:
            text += [f"% {title or part.title}", rf"\begin{{tabular}}{{l{'r' * (len(rows[0]) - 1)}}}", r"\toprule"]
            body = [" & ".join(cell.translate(clean) for cell in row) + r" \\" for row in rows]
            text += [body[0], r"\midrule", *body[1:], r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(text)


def run(args: argparse.Namespace) -> int:
    """Write what is asked for; print where."""
    records = [load(path) for path in args.runs]
    written = []
    for path, make in ((args.output, html), (args.markdown, markdown), (args.latex, latex)):
        if path:
            with open(path, "w", encoding="utf-8") as file:
                file.write(make(records))
            written.append(path)
    if args.svg:
        os.makedirs(args.svg, exist_ok=True)
        for name, svg in (picture for part in parts_of(records) for picture in part.pictures):
            with open(os.path.join(args.svg, f"{name}.svg"), "w", encoding="utf-8") as file:
                file.write(charts.alone(svg))
            written.append(os.path.join(args.svg, f"{name}.svg"))
    print("\n".join(written) if written else markdown(records))
    return 0


def add_parser(commands: Any) -> None:
    """Add the command to `lwcc`."""
    parser = commands.add_parser("report", help="make a page, tables and figures of runs")
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="directory of lwccrun --baseline, or file of lwcc bench --json"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="one self-contained HTML file")
    parser.add_argument("--markdown", metavar="FILE")
    parser.add_argument("--latex", metavar="FILE")
    parser.add_argument("--svg", metavar="FOLDER", help="every figure as a file")
    parser.set_defaults(run=run)
