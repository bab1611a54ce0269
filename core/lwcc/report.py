"""`lwcc report`: runs of `lwcc bench --json` and `lwccrun --baseline` as one page, as markdown, LaTeX and figures.

Here is what is said and shown; `sections.py` and `trainings.py` make its parts, `page.py` the page,
`papers.py` and `figures.py` the files for papers.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from lwcc import charts, figures, page, papers, verdict
from lwcc.launcher.measure import size_text
from lwcc.sections import Rows, Section, middle, network, seconds, warnings, where
from lwcc.trainings import has_told, training_part, training_standing, training_title

ABOUT = """\
Show what runs have measured: which engine was how fast, and whether a difference is more than noise. Several runs go
into one report. Without any option the tables are printed as markdown."""
EXAMPLE = "example: lwcc report lwcc-train-20261130-120000 run.json -o report.html --svg figures"


def load(path: str) -> dict[str, Any]:
    """Read a run directory or a JSON file; ValueError if it is neither."""
    file_name = os.path.join(path, "run.json") if os.path.isdir(path) else path
    record: Any = None
    try:
        with open(file_name, encoding="utf-8") as file:
            record = json.load(file)
    except OSError as error:
        raise ValueError(f"lwcc report: {file_name}: {error.strerror or error}") from None
    except ValueError:
        pass  # as any other file that is no run
    if not isinstance(record, dict) or record.get("kind") not in ("bench", "baseline"):
        raise ValueError(f"lwcc report: {file_name} is no run of lwcc: give a directory that lwccrun --baseline has "
                         "made, or a file of lwcc bench --json")  # fmt: skip
    return {**record, "path": path}


def silence(record: dict[str, Any]) -> str:
    """Say what became of a record in which nothing was measured; "" if something was."""
    if record["kind"] == "bench":
        return "" if record["rows"] else "nothing was measured"
    if any(map(has_told, record["runs"])):
        return ""
    ends = ", ".join(f"{run['variant']} exit {run['code']}" for run in record["runs"]) or "none began"
    return f"no run has told samples/s, losses or steps ({ends})"


# ---- collectives ----


def bench_title(record: dict[str, Any]) -> str:
    """What was measured, in a few words."""
    dtypes = {row.get("dtype", "float32") for row in record["rows"]} - {"float32"}
    how = sorted(dtypes) + [text for key, text in (("in_place", "in place"), ("registered", "registered"))
                            if record.get(key)]  # fmt: skip
    return ", ".join([record["collective"], *how, f"{record['np']} ranks"]) + network(record)


def _by_name(record: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in record["rows"]:
        found.setdefault(row["name"], []).append(row)
    return found


def standings(record: dict[str, Any]) -> list[tuple[int, dict[str, Any], verdict.Standing]]:
    """For each size at which both were measured: LWCC's best way, and how it stands among the other engines.

    A size at which an engine was faster than the limit allows is noise: a shaped link lets pass a burst after a rest.
    """
    found = []
    for size in sorted({row["size"] for row in record["rows"]}):
        here = [row for row in record["rows"] if row["size"] == size]
        ours = min((r for r in here if r["engine"] == "lwcc"), key=lambda r: r["t_med"], default=None)
        others = [r for r in here if r["engine"] != "lwcc"]
        if ours is not None and others:
            each = {r["name"]: verdict.compare(ours["rounds"], r["rounds"]) for r in others}
            if any(r.get("share", 0.0) > 1 + verdict.MARGIN for r in here):
                each = {name: ("noise", ratio) for name, (_, ratio) in each.items()}
            found.append((size, ours, verdict.among(each)))
    return found


def verdicts(record: dict[str, Any]) -> Rows:
    """For each size: LWCC's best way against the best other engine, and what may be said."""
    rows: Rows = [["size", "LWCC", "best other", "which", "LWCC is", "verdict", "of limit"]]
    times = {(row["size"], row["name"]): row["t_med"] for row in record["rows"]}
    for size, ours, found in standings(record):
        share = f"{ours['share']:.0%}" if ours["share"] else "-"
        rows.append([size_text(size), seconds(ours["t_med"]), seconds(times[size, found.other]), found.other,
                     found.text(), found.said, share])  # fmt: skip
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
        say = {r["size"]: f"{size_text(r['size'])}, {seconds(r['t_med'])}, {r['busbw'] / 1e9:.3g} GB/s" for r in rows}
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
        "latency": charts.lines(charts.Axes(f"Time of {title}", "size", "time", True, True, size_text, seconds),
                                found["latency"]),
        "busbw": charts.lines(charts.Axes(f"Bus bandwidth of {title}", "size", "GB/s", True, True, size_text),
                              found["busbw"]),
        "speedup": charts.lines(
            charts.Axes(f"Best other engine's median over LWCC's: {title}", "size", "ratio", True, True, size_text),
            found["speedup"]),
    }  # fmt: skip
    heads = ["engine", "size", "t_med", "t_p99", "cv%", "algbw GB/s", "busbw GB/s", "of limit", "wrong"]
    every = [[r["name"], size_text(r["size"]), seconds(r["t_med"]), seconds(r["t_p99"]), f"{r['cv'] * 100:.0f}",
              f"{r['algbw'] / 1e9:.3f}", f"{r['busbw'] / 1e9:.3f}", f"{r['share']:.0%}", str(r["wrong"])]
             for r in record["rows"]]  # fmt: skip
    tables = [(f"All figures: {title}", [heads, *every])]
    if len(verdicts(record)) > 1:
        tables.insert(0, (f"Verdicts: {title}", verdicts(record)))
    if record.get("settings"):
        tables.append((f"Settings: {title}", [["engine", "settings"], *map(list, record["settings"].items())]))
    about = f"{where(record)}, load before {record['load']:.1f}; {record['rounds']} interleaved rounds"
    about += " (vertical bars: their range)."
    pictures = [(f"{number}-{record['collective']}-{n}", chart) for n, chart in drawn.items() if chart]
    return Section(title, about, shlex.join(["lwcc", *record["argv"][1:]]), tables, pictures)


def scaling(records: Sequence[dict[str, Any]]) -> Rows:
    """Efficiency against one rank, where the same command ran with several numbers of ranks."""
    rows: Rows = [["command", "engine", "ranks", "samples/s", "efficiency"]]
    found: dict[tuple[str, str], dict[int, float]] = {}
    for record in records:
        for name in record["settings"] if record["kind"] == "baseline" else ():
            speed = middle([r["samples_per_s"] for r in record["runs"] if r["variant"] == name])
            if speed:
                found.setdefault((" ".join(record["command"]), name), {})[record["np"]] = speed
    for (command, name), speeds in found.items():
        if len(speeds) > 1:
            least = min(speeds)
            rows += [[command, name, str(n), f"{s:.0f}", f"{s / n / (speeds[least] / least):.0%}"]
                     for n, s in sorted(speeds.items())]  # fmt: skip
    return rows


def overview(records: Sequence[dict[str, Any]]) -> Rows:
    """The verdict table: a row for each benchmark, with a cell for each size, and for each training, with one."""
    rows: Rows = [["measurement", "better", "noise", "worse", "best gain", "worst loss", "wrong results"]]
    for record in records:
        if record["kind"] == "bench":
            title, bad = bench_title(record), str(sum(r["wrong"] for r in record["rows"]))
            found = [standing for _, _, standing in standings(record)]
        else:
            title, bad = training_title(record), "-"
            one = training_standing(record)
            found = [one] if one else []
        by_ratio = sorted(found, key=lambda standing: standing.ratio)
        gains = [f"{s.text()} than {s.other}" for s in reversed(by_ratio) if s.said == "better"]
        losses = [f"{s.text()} than {s.other}" for s in by_ratio if s.said == "worse"]
        counts = [str(sum(s.said == kind for s in found)) for kind in ("better", "noise", "worse")]
        rows.append([title, *counts, *(texts[0] if texts else "-" for texts in (gains, losses)), bad])
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
    about += f"{verdict.MARGIN:.0%} apart; all else is noise. Better: than every other engine; worse: than one of them."
    parts = [Section("Verdicts", about, "", [("LWCC against the best other engine", overview(records))], [])]
    if len(scaling(records)) > 1:
        about = "Efficiency: speed per rank against the fewest ranks."
        parts.append(Section("Scaling", about, "", [("", scaling(records))], _scaling_chart(records)))
    for number, record in enumerate(records, 1):
        part = (bench_part if record["kind"] == "bench" else training_part)(record, number)
        parts.append(part._replace(warnings=[*filter(None, [silence(record)]), *warnings(record)]))
    return parts


def html(records: Sequence[dict[str, Any]]) -> str:
    """Return the page; ValueError if Bokeh or jinja2 is missing."""
    return page.html(records, parts_of(records))


def markdown(records: Sequence[dict[str, Any]]) -> str:
    """Return the tables as markdown."""
    return papers.markdown(parts_of(records))


def latex(records: Sequence[dict[str, Any]]) -> str:
    """Return the tables as LaTeX (booktabs)."""
    return papers.latex(parts_of(records))


def run(args: argparse.Namespace) -> int:
    """Write what is asked for; print where."""
    records = [load(path) for path in args.runs]
    silent = [f"lwcc report: {record['path']}: {silence(record)}" for record in records if silence(record)]
    for line in silent:
        print(line, file=sys.stderr)
    if len(silent) == len(records):
        return 1
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
