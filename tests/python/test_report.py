"""The report: verdicts, charts, and a page that is one file."""

from __future__ import annotations

import json
import xml.etree.ElementTree as xml
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from lwcc import charts, report, verdict
from lwcc.__main__ import main


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [([1.0, 1.1, 1.0], [2.0, 2.2, 2.1], "better"), ([2.0, 2.2, 2.1], [1.0, 1.1, 1.0], "worse"),
     ([1.0, 3.0, 1.0], [2.0, 2.2, 2.1], "noise"), ([1.0, 1.0], [9.0, 9.0], "noise"),
     ([1.0] * 3, [1.02] * 3, "noise"), ([1.02] * 3, [1.0] * 3, "noise")],
)  # fmt: skip
def test_verdicts(ours: list[float], theirs: list[float], said: str) -> None:
    assert verdict.compare(ours, theirs)[0] == said


def bench_record() -> dict[str, Any]:
    rows = []
    for size in (1024, 1 << 20):
        for name, engine, t in (("lwcc", "lwcc", 1e-6), ("lwcc:ring", "lwcc", 3e-6), ("mpi", "mpi", 2e-6)):
            t *= size / 1024
            rows.append(
                {
                    "size": size, "count": size // 4, "dtype": "float32", "name": name, "engine": engine,
                    "algorithm": "", "t_med": t, "rounds": [t, t, t * 1.01], "t_p99": 2 * t, "cv": 0.1,
                    "algbw": size / t, "busbw": size / t, "limit_s": t / 2, "share": 0.5, "wrong": 0,
                    "shared_memory": 1, "iterations": 7,
                }
            )  # fmt: skip
    return {"kind": "bench", "machine": "m <1>", "np": 2, "collective": "allreduce", "net": "none", "load": 0.1,
            "in_place": False,
            "registered": False, "rounds": 2, "argv": ["lwcc", "bench", "</script>"], "rows": rows}  # fmt: skip


def training_record() -> dict[str, Any]:
    def run(variant: str, speed: Any, code: int = 0) -> dict[str, Any]:
        return {
            "variant": variant, "code": code, "seconds": 2.0, "samples_per_s": speed, "step_s": [0.01, 0.02],
            "step_median_s": 0.015, "step_p90_s": 0.02, "exposed_s": 0.5, "communication_s": 0.7, "nbytes": 100,
            "allreduces": [0, 0, 5], "losses": [1.0, 0.5], "accuracy": 0.9, "engine": 0,
            "ranks": [{"rank": 0, "exposed_s": 0.5, "communication_s": 0.7}],
        }  # fmt: skip

    settings = {"lwcc": "as it comes", "mpi": "--bind-to none"}
    runs = [run(name, speed + k) for k in range(3) for name, speed in (("lwcc", 200.0), ("mpi", 100.0))]
    return {"kind": "baseline", "np": 2, "command": ["train.py"], "argv": ["lwccrun"], "machine": "m",
            "mpi": "Open MPI", "settings": settings, "runs": runs}  # fmt: skip


@pytest.fixture
def records(tmp_path: Path) -> list[str]:
    (tmp_path / "bench.json").write_text(json.dumps(bench_record()))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps(training_record()))
    return [str(tmp_path / "bench.json"), str(tmp_path / "run")]


class Page(HTMLParser):
    """Collects what would be loaded from elsewhere, scripts, and the depth of open elements."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[str] = []
        self.scripts: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        values = dict(attrs)
        self.foreign += [v for k, v in attrs if k in ("src", "href") and not (v or "").startswith("data:")]
        if tag == "script":
            self.scripts.append(values.get("type", ""))
        if tag != "meta" and not self.get_starttag_text().endswith("/>"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_one_file_without_scripts(records: list[str], tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert main(["report", *records, "-o", str(out)]) == 0
    text = out.read_text()
    page = Page()
    page.feed(text)
    assert page.open == [] and page.foreign == [] and page.scripts == ["application/json"]
    assert len(text) < 3_000_000 and text.count("<svg") >= 6 and "prefers-color-scheme:dark" in text
    assert "m &lt;1&gt;" in text and text.count("</script>") == 1
    assert "@import" not in text and "url(" not in text
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert data[0]["argv"][2] == "</script>"


def test_what_is_said_of_each_run(records: list[str]) -> None:
    loaded = [report.load(path) for path in records]
    rows = report.overview(loaded)
    assert rows[1][:4] == ["allreduce, 2 ranks", "2", "0", "0"]
    assert rows[2][:4] == ["train.py, 2 ranks", "1", "0", "0"]
    assert report.training_rows(loaded[1])[2][:4] == ["mpi", "101", "0.50", "LWCC faster"]
    assert report.scaling(loaded) == [["command", "engine", "ranks", "samples/s", "efficiency"]]
    more = {**loaded[1], "np": 4}
    assert [row[4] for row in report.scaling([loaded[1], more])[1:3]] == ["100%", "50%"]


def test_tables_for_papers_and_figures(records: list[str], tmp_path: Path) -> None:
    md, tex, svg = tmp_path / "r.md", tmp_path / "r.tex", tmp_path / "figures"
    assert main(["report", *records, "--markdown", str(md), "--latex", str(tex), "--svg", str(svg)]) == 0
    assert "| allreduce, 2 ranks | 2 | 0 | 0 |" in md.read_text()
    assert r"50\%" in tex.read_text() and tex.read_text().count(r"\begin{tabular}") == tex.read_text().count(
        r"\bottomrule"
    )
    pictures = sorted(svg.glob("*.svg"))
    assert len(pictures) >= 6
    for picture in pictures:
        root = xml.parse(picture).getroot()
        assert root.tag.endswith("svg") and any(e.tag.endswith("title") for e in root.iter()), picture


@pytest.mark.parametrize("text", ["", "{}", '{"kind": "x"}', "[1]"])
def test_other_files_are_refused(tmp_path: Path, text: str, capsys: Any) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert main(["report", str(path)]) == 2
    assert "lwcc report" in capsys.readouterr().err


def test_charts_of_nothing_and_of_one_point() -> None:
    axes = charts.Axes("t", "x", "y")
    assert charts.lines(axes, [charts.Line("a", [])]) == "" and charts.bars("t", "u", []) == ""
    for flag in (True, False):
        one = charts.lines(axes._replace(log_x=flag, log_y=flag), [charts.Line("<a>", [charts.Point(5, 7)])])
        assert "nan" not in one and "&lt;a&gt;" in one
        xml.fromstring(one)
