"""`--baseline`: the same script on LWCC and on other engines, interleaved, and one table of how they did."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable

from lwcc.launcher import info
from lwcc.launcher.args import LaunchSpec
from lwcc.launcher.engines import Settings
from lwcc.launcher.env import cores
from lwcc.launcher.logdir import clear, make, write_json
from lwcc.launcher.measure import (
    Run,
    agreement,
    histogram,
    read_journals,
    read_output,
    read_stamps,
    script_of,
    size_text,
)
from lwcc.launcher.net import Network
from lwcc.launcher.spawn import CannotRun
from lwcc.launcher.supervise import ENDING


@dataclass(frozen=True)
class Variant:
    """One engine with its settings."""

    engine: str
    settings: Settings

    @property
    def name(self) -> str:
        """As the table shows it."""
        return self.settings.name


def find_variants(spec: LaunchSpec) -> tuple[list[Variant], str]:
    """What is to be run, LWCC first, and which MPI that is ("" if none). Raises CannotRun before anything starts."""
    variants, version = [Variant("own", Settings("lwcc"))], ""
    for engine in spec.baseline:
        if engine == "mpi":
            from lwcc.launcher import mpi

            found = mpi.find_mpi()
            version = found.version
            variants.append(Variant("mpi", mpi.plain(found, spec.np)))
            if spec.mpi_best:
                variants += [Variant("mpi", settings) for settings in mpi.best(found, spec.np)]
        else:
            variants.append(Variant(engine, Settings(engine)))
    return variants, version


def run_baseline(spec: LaunchSpec, command: Sequence[str], network: Network | None = None) -> int:
    """Run everything; print the table and write the run directory. The exit code is that of the first failed run."""
    variants, version = find_variants(spec)
    stem = os.path.splitext(script_of(spec.command))[0]
    folder = spec.log_dir or f"lwcc-{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    make(folder, "--output-filename" if spec.horovod_log_layout else "--log-dir")
    began = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    runs = _run_all(spec, command, variants, folder, network)
    begun = {run.variant for run in runs}
    record = {
        "kind": "baseline", "lwcc_version": info.version(), "np": spec.np, "command": list(spec.command),
        "cwd": os.getcwd(), "argv": sys.argv, "started": began, "machine": info.machine(), "mpi": version,
        "net": network.describe() if network is not None else "",
        "settings": {v.name: v.settings.text() for v in variants if v.name in begun},
        "runs": [run.as_record() for run in runs],
    }  # fmt: skip
    print("\n" + table(record, runs), flush=True)
    code = next((run.code for run in runs if run.code), 0)
    path = os.path.join(folder, "run.json")
    try:
        write_json(path, record)
    except OSError as error:
        _say(f"{path} cannot be written: {error.strerror or error}")
        return code or 1
    hint = f"  (a page of it: lwcc report {folder} -o report.html)" if any(run.told() for run in runs) else ""
    print(f"written: {path}{hint}", flush=True)
    return code


def _run_all(
    spec: LaunchSpec, command: Sequence[str], variants: Sequence[Variant], folder: str, network: Network | None
) -> list[Run]:
    """Run the variants in turn, as often as is wanted; a signal leaves out what is to come, and says so."""
    turns = [(variant, repeat + 1) for repeat in range(spec.repeat) for variant in variants]
    runs: list[Run] = []
    for variant, repeat in turns:
        _say(f"--- {variant.name}, run {repeat} of {spec.repeat} ({variant.settings.text()})")
        runs.append(_run_one(spec, command, variant, os.path.join(folder, f"{variant.name}-{repeat}"), network))
        if runs[-1].code in ENDING.values() and len(runs) < len(turns):
            _say(f"ended by a signal; left out: {', '.join(f'{v.name}-{n}' for v, n in turns[len(runs) :])}")
            break
    return runs


def _say(text: str) -> None:
    print(f"lwccrun: {text}", file=sys.stderr, flush=True)


def _run_one(spec: LaunchSpec, command: Sequence[str], variant: Variant, folder: str, network: Network | None) -> Run:
    from lwcc.launcher.command import run_job

    journal = os.path.abspath(os.path.join(folder, "journal"))
    same = {"PYTHONHASHSEED": "0", **spec.extra_env, "LWCC_JOURNAL": journal, "LWCC_ENGINE": variant.engine}
    one = replace(
        spec, engine=variant.engine, settings=variant.settings, log_dir=folder, extra_env=same, baseline=()
    )  # fmt: skip
    began = time.monotonic()
    try:
        clear(folder)
        code = run_job(one, command, network)
    except (CannotRun, OSError) as error:  # a full disk, say; what the runs before it have shown is not lost
        _say(f"{variant.name} could not run: {error}")
        return Run(variant.name, error.code if isinstance(error, CannotRun) else 1, time.monotonic() - began)
    run = Run(variant.name, code, time.monotonic() - began)
    log = os.path.join(folder, "rank-0", "stdout.log")
    if os.path.exists(log):
        with open(log, encoding="utf-8", errors="replace") as file:
            read_output(run, file.read(), read_stamps(log))
    read_journals(run, journal)
    if code:
        _say(f"{variant.name} failed with code {code}; its output is in {folder}")
    return run


# ---- the table ----


def _middle(runs: Sequence[Run], get: Callable[[Run], float | None]) -> float | None:
    """The median over the runs."""
    values = [v for v in map(get, runs) if v is not None]
    return statistics.median(values) if values else None


def _spread(runs: Sequence[Run]) -> str:
    """The slowest and the fastest run's samples a second; "" for one run."""
    values = [run.samples_per_s for run in runs if run.samples_per_s is not None]
    return f" ({min(values):.0f}-{max(values):.0f})" if len(values) > 1 else ""


def _cell(value: float | None, scale: float, digits: int) -> str:
    return "-" if value is None else f"{value * scale:.{digits}f}"


def rows(runs: Sequence[Run]) -> list[dict[str, str]]:
    """One row of texts for each variant, in the order of the runs."""
    names = list(dict.fromkeys(run.variant for run in runs))
    ours = [run for run in runs if run.variant == names[0] and run.told()]
    base = _middle(ours, lambda run: run.samples_per_s)
    found = []
    for name in names:
        mine = [run for run in runs if run.variant == name]
        good = [run for run in mine if run.told() or run.code == 0]
        failed = next((run.code for run in mine if run.code), 0)
        if not good:
            found.append({"engine": name, "samples/s": f"exit {failed}" if failed else "-"})
            continue
        speed = _middle(good, lambda run: run.samples_per_s)
        found.append(
            {
                "engine": f"{name} (exit {failed})" if failed else name,
                "samples/s": _cell(speed, 1, 0) + _spread(good),
                "x lwcc": "-" if speed is None or not base else f"{speed / base:.2f}",
                "wall s": _cell(_middle(good, lambda run: run.seconds), 1, 1),
                "step ms": _cell(_middle(good, Run.step_median), 1e3, 2),
                "p90 ms": _cell(_middle(good, Run.step_p90), 1e3, 2),
                "exposed s": _cell(_middle(good, lambda run: run.exposed_s), 1, 2),
                "comm s": _cell(_middle(good, lambda run: run.communication_s), 1, 2),
                "bytes": "-" if good[0].nbytes is None else size_text(good[0].nbytes),
                "allreduces": str(sum(good[0].allreduces)) if good[0].allreduces else "-",
                "loss": _cell(good[0].losses[-1] if good[0].losses else None, 1, 4),
                "accuracy": _cell(good[0].accuracy, 1, 4),
            }
        )
    return found


def table(record: dict[str, Any], runs: Sequence[Run]) -> str:
    """The comparison as text."""
    cells = rows(runs)
    heads = list(next((row for row in cells if len(row) > 2), cells[0]))
    widths = {h: max(len(h), *(len(row.get(h, "")) for row in cells)) for h in heads}
    lines = [f"{record['np']} ranks, {record['machine']}" + (f", {record['mpi']}" if record["mpi"] else "")]
    if record["np"] > cores():
        lines.append(
            f"warning: {record['np']} ranks share {cores()} cores: these figures tell little about other machines"
        )
    lines += ["  ".join(f"{h:>{widths[h]}}" for h in heads)]
    lines += ["  ".join(f"{row.get(h, ''):>{widths[h]}}" for h in heads) for row in cells]
    lines.append("x lwcc: of LWCC's samples/s, above 1 is faster than LWCC; step: from one step() to the next, median")
    if all(run.samples_per_s is None for run in runs) and any(run.code == 0 for run in runs):
        lines.append("no samples/s: none of the script's lines says it, as '1234 samples/s' would")
    if len(runs) == len(record["settings"]):
        lines.append("one run each shows no spread: --repeat 3 tells a difference from chance")
    firsts = {run.variant: run for run in reversed(runs) if run.told()}
    if any(run.allreduces for run in firsts.values()):
        lines.append("exposed: rank 0 waited; comm: a collective ran on rank 0. allreduces by size (upper bounds):")
    for name in record["settings"]:
        if name in firsts and firsts[name].allreduces:
            lines.append(f"  {name}: {histogram(firsts[name].allreduces)}")
    names = list(record["settings"])
    verdicts: dict[str, list[str]] = {}
    for name in names[1:]:
        if name in firsts and names[0] in firsts:
            verdict, worst = agreement(firsts[names[0]].losses, firsts[name].losses)
            most = "" if worst is None else f" (largest relative difference {worst:.2g})"
            verdicts.setdefault(verdict + most, []).append(name)
    lines += [f"losses of {names[0]} and {', '.join(others)}: {verdict}" for verdict, others in verdicts.items()]
    lines += [f"settings of {name}: {text}" for name, text in record["settings"].items() if name != names[0]]
    return "\n".join(lines)
