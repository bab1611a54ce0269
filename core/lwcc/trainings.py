"""Training runs of `lwccrun --baseline` as sections of a report."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Optional

from lwcc import charts, verdict
from lwcc.launcher import baseline
from lwcc.launcher.measure import Run, agreement, histogram, script_of
from lwcc.sections import Rows, Section, middle, network, seconds, where


def _told(record: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The cells of lwccrun's own table by engine, so that the page says the same of a run directory."""
    known = {field.name for field in fields(Run)}
    runs = [Run(**{key: value for key, value in run.items() if key in known}) for run in record["runs"]]
    names = dict.fromkeys(run.variant for run in runs)
    return dict(zip(names, baseline.rows(runs)))


def training_rows(record: dict[str, Any]) -> Rows:
    """One row for each engine of a training run."""
    rows: Rows = [
        ["engine", "samples/s", "x LWCC", "verdict", "step", "p90", "exposed", "communication", "loss", "losses"]
    ]
    names = list(record["settings"])
    runs = {name: [r for r in record["runs"] if r["variant"] == name] for name in names}
    told, speeds = _told(record), _speeds(record)
    for name in names:
        first, cells, said = runs[name][0], told[name], "-"
        if name != names[0] and name in speeds and names[0] in speeds:
            said = verdict.compare_rates(speeds[names[0]], speeds[name])[0]
        agree = "-" if name == names[0] else agreement(runs[names[0]][0]["losses"], first["losses"])[0]
        times = [middle([r[key] for r in runs[name]]) for key in
                 ("step_median_s", "step_p90_s", "exposed_s", "communication_s")]  # fmt: skip
        rows.append([
            name, f"{statistics.median(speeds[name]):.0f}" if name in speeds else f"exit {first['code']}",
            cells.get("x lwcc", "-"), {"better": "LWCC faster", "worse": "LWCC slower"}.get(said, said),
            *("-" if t is None else seconds(t) for t in times),
            f"{first['losses'][-1]:.5g}" if first["losses"] else "-", agree,
        ])  # fmt: skip
    return rows


def training_title(record: dict[str, Any]) -> str:
    """What ran, in a few words."""
    return f"{script_of(record['command'])}, {record['np']} ranks{network(record)}"


def _speeds(record: dict[str, Any]) -> dict[str, list[float]]:
    """The samples/s of each engine's runs, LWCC first; of those that have any."""
    found = {name: [r["samples_per_s"] for r in record["runs"] if r["variant"] == name and r["samples_per_s"]]
             for name in record["settings"]}  # fmt: skip
    return {name: speeds for name, speeds in found.items() if speeds}


def training_standing(record: dict[str, Any]) -> Optional[verdict.Standing]:
    """How LWCC stands among the other engines; None if there is nothing to compare."""
    others = _speeds(record)
    ours = others.pop(next(iter(record["settings"]), ""), None)
    if not ours or not others:
        return None
    return verdict.among({name: verdict.compare_rates(ours, speeds) for name, speeds in others.items()})


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
                charts.Part("computing", max(step - waited, 0.0) * 1e3, f"{who}: {seconds(step - waited)} computing"),
                charts.Part("waiting for communication", waited * 1e3, f"{who}: {seconds(waited)} waiting"),
            ]))  # fmt: skip
    return found


def training_part(record: dict[str, Any], number: int) -> Section:
    """Throughput, losses and step times of one training run."""
    last_first = {run["variant"]: run for run in reversed(record["runs"])}
    firsts = {name: last_first[name] for name in record["settings"] if name in last_first}
    title = training_title(record)
    speeds = [(name, middle([r["samples_per_s"] for r in record["runs"] if r["variant"] == name])) for name in firsts]
    steps = [
        charts.Line(n, [charts.Point(i + 1, v * 1e3, label=f"step {i + 1}, {seconds(v)}")
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
    return Section(title, where(record) + ".", shlex.join(["lwccrun", *record["argv"][1:]]), tables, pictures)


def _numbered(values: Sequence[float]) -> list[tuple[int, float]]:
    """At most 400 of them, evenly taken, with their places."""
    return list(enumerate(values))[:: max(1, len(values) // 400)]


def _thin(values: Sequence[float]) -> list[float]:
    """At most 400 steps, evenly taken."""
    return list(values[:: max(1, len(values) // 400)])
