"""`lwcc report`: runs of `lwcc bench --json` and `lwccrun --baseline` as one page, as markdown, LaTeX and figures.

Here is what is said and shown; `page.py` makes the page, `figures.py` the files for papers.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from lwcc import charts, figures, page, verdict
from lwcc.launcher.measure import agreement, histogram, script_of, size_text

Rows = list[list[str]]  # the first one holds the heads
ABOUT = """\
Show what runs have measured: which engine was how fast, and whether a difference is more than noise. Several runs go
into one report. Without any option the tables are printed as markdown."""
EXAMPLE = "example: lwcc report lwcc-train-20261130-120000 run.json -o report.html --svg figures"


class Section(NamedTuple):
    """What belongs together: tables with their titles, and charts by the names of their files."""

    title: str
    about: str
    command: str
    tables: list[tuple[str, Rows]]
    pictures: list[tuple[str, charts.Chart]]


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
    return f"{record['collective']}, {record['np']} ranks{_network(record)}"


def _network(record: dict[str, Any]) -> str:
    net = record.get("net")
    return f", network {'unshaped' if net == 'none' else net}" if net else ""


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


def bench_lines(record: dict[str, Any]) -> dict[str, list[charts.Line]]:
    """Return time, bus bandwidth and speed-up of one benchmark against the size."""
    found: dict[str, list[charts.Line]] = {"latency": [], "busbw": [], "speedup": []}
    for name, rows in _by_name(record).items():
        rows = [r for r in rows if r["size"] > 0]
        say = {r["size"]: f"{size_text(r['size'])}, {_seconds(r['t_med'])}, {r['busbw'] / 1e9:.3g} GB/s" for r in rows}
        found["latency"].append(charts.Line(name, [
            charts.Point(r["size"], r["t_med"], min(r["rounds"]), max(r["rounds"]), say[r["size"]]) for r in rows
        ]))  # fmt: skip
        moved = {r["size"]: r["busbw"] * r["t_med"] / 1e9 for r in rows}
        found["busbw"].append(charts.Line(name, [
            charts.Point(r["size"], r["busbw"] / 1e9, moved[r["size"]] / max(r["rounds"]),
                         moved[r["size"]] / min(r["rounds"]), say[r["size"]]) for r in rows
        ]))  # fmt: skip
        if rows and rows[0]["engine"] == "lwcc":
            best = {r["size"]: _best_other(record, r["size"]) for r in rows}
            found["speedup"].append(charts.Line(name, [
                charts.Point(r["size"], best[r["size"]] / r["t_med"], label=f"{size_text(r['size'])}, "
                             f"{best[r['size']] / r['t_med']:.3g} times") for r in rows if best[r["size"]]
            ]))  # fmt: skip
    return found


def bench_part(record: dict[str, Any], number: int) -> Section:
    """Latency, bus bandwidth and speed-up of one benchmark."""
    title, found = bench_title(record), bench_lines(record)
    drawn = {
        "latency": charts.lines(charts.Axes(f"Time of {title}", "size", "time", True, True, size_text, _seconds),
                                found["latency"]),
        "busbw": charts.lines(charts.Axes(f"Bus bandwidth of {title}", "size", "GB/s", True, True, size_text),
                              found["busbw"]),
        "speedup": charts.lines(
            charts.Axes(f"Times faster than the best other engine: {title}", "size", "ratio", True, True, size_text),
            found["speedup"]),
    }  # fmt: skip
    heads = ["engine", "size", "t_med", "t_p99", "cv%", "algbw GB/s", "busbw GB/s", "of limit", "wrong"]
    every = [[r["name"], size_text(r["size"]), _seconds(r["t_med"]), _seconds(r["t_p99"]), f"{r['cv'] * 100:.0f}",
              f"{r['algbw'] / 1e9:.3f}", f"{r['busbw'] / 1e9:.3f}", f"{r['share']:.0%}", str(r["wrong"])]
             for r in record["rows"]]  # fmt: skip
    tables = [(f"All figures: {title}", [heads, *every])]
    if len(verdicts(record)) > 1:
        tables.insert(0, (f"Verdicts: {title}", verdicts(record)))
    if record.get("settings"):
        tables.append((f"Settings: {title}", [["engine", "settings"], *map(list, record["settings"].items())]))
    about = f"{_where(record)}, load before {record['load']:.1f}; {record['rounds']} interleaved rounds"
    about += " (vertical bars: their range)."
    pictures = [(f"{number}-{record['collective']}-{n}", chart) for n, chart in drawn.items() if chart]
    return Section(title, about, shlex.join(["lwcc", *record["argv"][1:]]), tables, pictures)


def _where(record: dict[str, Any]) -> str:
    """The machine, the versions, and when."""
    parts = [record["machine"], f"LWCC {record['lwcc_version']}" if record.get("lwcc_version") else ""]
    parts += [record.get("mpi", ""), record.get("started", "")]
    return ", ".join(part for part in parts if part)


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


def _losses(firsts: dict[str, dict[str, Any]], key: str) -> list[charts.Line]:
    """The losses as printed, against their number, or against the seconds at which they were printed."""
    found = []
    for name, run in firsts.items():
        values = run["losses"]
        xs = run.get(key) or [] if key else range(1, len(values) + 1)
        found.append(charts.Line(name, [charts.Point(x, v) for x, v in zip(_thin(list(xs)), _thin(values))]))
    return found


def _breakdown(firsts: dict[str, dict[str, Any]]) -> list[tuple[str, list[charts.Part]]]:
    """Where each rank's mean step went: it computed, or waited for communication."""
    found = []
    for name, run in firsts.items():
        for rank in [r for r in run.get("ranks", []) if r.get("step_s")][:16]:
            waited, step = rank["step_waited_s"], rank["step_s"]
            who = f"{name}, rank {rank['rank']}"
            found.append((who, [
                charts.Part("computing", max(step - waited, 0.0) * 1e3, f"{who}: {_seconds(step - waited)} computing"),
                charts.Part("waiting for communication", waited * 1e3, f"{who}: {_seconds(waited)} waiting"),
            ]))  # fmt: skip
    return found


def training_part(record: dict[str, Any], number: int) -> Section:
    """Throughput, losses and step times of one training run."""
    last_first = {run["variant"]: run for run in reversed(record["runs"])}
    firsts = {name: last_first[name] for name in record["settings"] if name in last_first}
    title = f"{script_of(record['command'])}, {record['np']} ranks{_network(record)}"
    speeds = [(name, _middle([r["samples_per_s"] for r in record["runs"] if r["variant"] == name])) for name in firsts]
    steps = [
        charts.Line(n, [charts.Point(i + 1, v * 1e3, label=f"step {i + 1}, {_seconds(v)}")
                        for i, v in _numbered(r["step_s"])]) for n, r in firsts.items()
    ]  # fmt: skip
    drawn = {
        "throughput": charts.bars(f"Throughput of {title}", "samples/s", [
            (n, [charts.Part("samples/s", v, f"{n}: {v:.5g} samples/s")]) for n, v in speeds if v]),
        "loss": charts.lines(charts.Axes(f"Losses as printed: {title}", "number of the loss", "loss", False, False),
                             _losses(firsts, "")),
        "loss-seconds": charts.lines(
            charts.Axes(f"Losses against time: {title}", "seconds since the start of the job", "loss", False, False),
            _losses(firsts, "loss_at_s")),
        "steps": charts.lines(charts.Axes(f"Time of each step: {title}", "step", "ms", False, True), steps),
        "breakdown": charts.bars(f"The mean step of each rank: {title}", "ms", _breakdown(firsts)),
    }  # fmt: skip
    sizes = [["engine", "allreduces by size (upper bounds)"]]
    sizes += [[name, histogram(run["allreduces"])] for name, run in firsts.items() if run["allreduces"]]
    settings = [["engine", "settings"], *([name, text] for name, text in record["settings"].items())]
    tables = [(title, training_rows(record)), (f"Sizes: {title}", sizes), (f"Settings: {title}", settings)]
    pictures = [(f"{number}-training-{n}", chart) for n, chart in drawn.items() if chart]
    return Section(title, _where(record) + ".", shlex.join(["lwccrun", *record["argv"][1:]]), tables, pictures)


def _numbered(values: Sequence[float]) -> list[tuple[int, float]]:
    """At most 400 of them, evenly taken, with their places."""
    return list(enumerate(values))[:: max(1, len(values) // 400)]


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


def _scaling_chart(records: Sequence[dict[str, Any]]) -> list[tuple[str, charts.Chart]]:
    found: dict[str, list[charts.Point]] = {}
    for command, engine, ranks, _, share in scaling(records)[1:]:
        name = f"{engine}: {os.path.basename(command.split()[0])}"
        found.setdefault(name, []).append(charts.Point(int(ranks), float(share.rstrip("%")), label=f"{ranks}: {share}"))
    axes = charts.Axes("Scaling efficiency", "ranks", "%", False, False)
    chart = charts.lines(axes, [charts.Line(name, points) for name, points in found.items()])
    return [("scaling", chart)] if chart else []


def parts_of(records: Sequence[dict[str, Any]]) -> list[Section]:
    """All sections, the overview first."""
    about = f"A verdict needs {verdict.LEAST} runs or rounds of each, ranges that do not touch, and medians "
    about += f"{verdict.MARGIN:.0%} apart; all else is noise."
    parts = [Section("Verdicts", about, "", [("LWCC against the best other engine", overview(records))], [])]
    if len(scaling(records)) > 1:
        about = "Efficiency: speed per rank against the fewest ranks."
        parts.append(Section("Scaling", about, "", [("", scaling(records))], _scaling_chart(records)))
    for number, record in enumerate(records, 1):
        parts.append((bench_part if record["kind"] == "bench" else training_part)(record, number))
    return parts


def html(records: Sequence[dict[str, Any]]) -> str:
    """Return the page; ValueError if Bokeh or jinja2 is missing."""
    return page.html(records, parts_of(records))


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
    for folder, kind in ((args.svg, "svg"), (args.pdf, "pdf")):
        if folder:
            os.makedirs(folder, exist_ok=True)
        for name, chart in (picture for part in parts_of(records) for picture in part.pictures if folder):
            written.append(os.path.join(folder, f"{name}.{kind}"))
            figures.save(chart, written[-1])
    print("\n".join(written) if written else markdown(records))
    return 0


def add_parser(commands: Any) -> None:
    """Add the command to `lwcc`."""
    parser = commands.add_parser(
        "report", help="make a page, tables and figures of runs", description=ABOUT, epilog=EXAMPLE,
    )  # fmt: skip
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="directory of lwccrun --baseline, or file of lwcc bench --json"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write one self-contained HTML file with all of it")
    parser.add_argument("--markdown", metavar="FILE", help="write the tables as markdown")
    parser.add_argument("--latex", metavar="FILE", help="write the tables as LaTeX, for its package booktabs")
    parser.add_argument("--svg", metavar="FOLDER", help="write every figure as an SVG file, for papers and slides")
    parser.add_argument("--pdf", metavar="FOLDER", help="write every figure as a PDF file")
    parser.set_defaults(run=run)
