"""Training runs of `lwccrun --baseline` as sections of a report."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Optional

from lwcc import charts, verdict
from lwcc.launcher import baseline
from lwcc.launcher.measure import Run, agreement, histogram, script_of
from lwcc.sections import Rows, Section, middle, network, seconds, where


def _runs(record: dict[str, Any]) -> dict[str, list[Run]]:
    """The runs of each engine, LWCC first."""
    known = {field.name for field in fields(Run)}
    runs = [Run(**{key: value for key, value in run.items() if key in known}) for run in record["runs"]]
    return {name: [run for run in runs if run.variant == name] for name in dict.fromkeys(r.variant for r in runs)}


def has_told(run: dict[str, Any]) -> bool:
    """Is there anything to compare?"""
    return bool(run["samples_per_s"] or run["step_s"] or run["losses"])


def _row(runs: Sequence[Run], base: Sequence[Run], cells: dict[str, str]) -> list[str]:
    """One engine's row; base: LWCC's runs; cells: of lwccrun's own table, so that a page says the same of a run."""
    good, ours = [run for run in runs if run.told()], [run for run in base if run.told()]
    count = f"{len(good)} of {len(runs)}" if len(good) < len(runs) else str(len(runs))
    head = [cells["engine"], count, cells["samples/s"], cells.get("x lwcc", "-")]
    if not good:
        return [*head, *["-"] * 7]
    said, agree = "-", "-"
    speeds, own = ([run.samples_per_s for run in of if run.samples_per_s] for of in (good, ours))
    if runs is not base and speeds and own:
        said = verdict.compare_rates(own, speeds)[0]
    if runs is not base and ours:
        agree = agreement(ours[0].losses, good[0].losses)[0]
    times = [middle([run.step_median() for run in good]), middle([run.step_p90() for run in good]),
             middle([run.exposed_s for run in good]), middle([run.communication_s for run in good])]  # fmt: skip
    loss = f"{good[0].losses[-1]:.5g}" if good[0].losses else "-"
    said = {"better": "LWCC faster", "worse": "LWCC slower"}.get(said, said)
    return [*head, said, *("-" if t is None else seconds(t) for t in times), loss, agree]


def training_rows(record: dict[str, Any]) -> Rows:
    """One row for each engine of a training run."""
    runs = _runs(record)
    told = baseline.rows([run for of in runs.values() for run in of])
    base = next(iter(runs.values()), [])
    heads = ["engine", "runs", "samples/s (range)", "x LWCC", "verdict", "step", "p90", "exposed", "communication",
             "loss", "losses"]  # fmt: skip
    return [heads, *(_row(of, base, cells) for of, cells in zip(runs.values(), told))]


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
    by_use = sorted(record["runs"], key=lambda run: not has_told(run))
    last_first = {run["variant"]: run for run in reversed(by_use)}
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
    tables = [(title, training_rows(record)), (f"Settings: {title}", settings)]
    if len(sizes) > 1:
        tables.insert(1, (f"Sizes: {title}", sizes))
    pictures = [(f"{number}-training-{n}", chart) for n, chart in drawn.items() if chart]
    return Section(title, where(record) + ".", shlex.join(["lwccrun", *record["argv"][1:]]), tables, pictures)


def _numbered(values: Sequence[float]) -> list[tuple[int, float]]:
    """At most 400 of them, evenly taken, with their places."""
    return list(enumerate(values))[:: max(1, len(values) // 400)]


def _thin(values: Sequence[float]) -> list[float]:
    """At most 400 steps, evenly taken."""
    return list(values[:: max(1, len(values) // 400)])
