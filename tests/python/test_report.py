"""The report: verdicts, charts, and a page that is one file."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from lwcc import charts, figures, report, trainings, verdict
from lwcc.__main__ import main


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [([1.0, 1.1, 1.0], [2.0, 2.2, 2.1], "better"), ([2.0, 2.2, 2.1], [1.0, 1.1, 1.0], "worse"),
     ([1.0, 3.0, 1.0], [2.0, 2.2, 2.1], "noise"), ([1.0, 1.0], [9.0, 9.0], "noise"),
     ([1.0] * 3, [1.02] * 3, "noise"), ([1.02] * 3, [1.0] * 3, "noise")],
)  # fmt: skip
def test_verdicts(ours: list[float], theirs: list[float], said: str) -> None:
    assert verdict.compare(ours, theirs)[0] == said


@pytest.mark.parametrize(
    ("found", "expected"),
    [({"a": ("better", 3.0), "b": ("better", 2.0)}, ("better", 2.0, "b")),
     ({"noisy": ("noise", 9.0), "b": ("better", 2.0)}, ("noise", 2.0, "b")),
     ({"noisy": ("noise", 0.2), "b": ("worse", 0.5), "c": ("worse", 0.7)}, ("worse", 0.5, "b"))],
)  # fmt: skip
def test_among_others(found: dict[str, tuple[str, float]], expected: tuple[str, float, str]) -> None:
    assert verdict.among(found) == expected


def test_an_engine_of_noisy_rounds_does_not_drop_out() -> None:
    bench = bench_record()
    noisy = [{**row, "name": "gloo", "engine": "gloo", "t_med": 9 * row["t_med"],
              "rounds": [row["t_med"] / 2, 9 * row["t_med"], 9 * row["t_med"]]}
             for row in bench["rows"] if row["name"] == "mpi"]  # fmt: skip
    bench["rows"] += noisy
    assert [row[5] for row in report.verdicts(bench)[1:]] == ["noise", "noise"]


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
    return {"kind": "bench", "machine": "m <1>", "np": 2, "collective": "allreduce", "net": "", "load": 0.1,
            "in_place": False,
            "registered": False, "rounds": 2, "argv": ["lwcc", "bench", "</script>"], "rows": rows}  # fmt: skip


def test_what_is_faster_than_the_limit_is_no_claim() -> None:
    bench = bench_record()
    bench["rows"][2]["share"] = 1.3  # mpi, the first size
    assert [row[5] for row in report.verdicts(bench)[1:]] == ["noise", "better"]


def training_record() -> dict[str, Any]:
    def run(variant: str, speed: Any, code: int = 0) -> dict[str, Any]:
        return {
            "variant": variant, "code": code, "seconds": 2.0, "samples_per_s": speed, "step_s": [0.01, 0.02],
            "step_median_s": 0.015, "step_p90_s": 0.02, "exposed_s": 0.5, "communication_s": 0.7, "nbytes": 100,
            "allreduces": [0, 0, 5], "losses": [1.0, 0.5], "loss_at_s": [1.5, 2.5], "accuracy": 0.9, "engine": 0,
            "ranks": [{"rank": r, "exposed_s": 0.5, "communication_s": 0.7, "step_s": 0.015, "step_waited_s": 0.005}
                      for r in range(2)],
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
    """Collects what would be loaded from elsewhere, and data scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[str] = []
        self.data = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        values = dict(attrs)
        own = ("data:", "#")
        self.foreign += [v for k, v in attrs if k in ("src", "href") and not (v or "").startswith(own)]
        self.data += tag == "script" and values.get("id") == "data"


@pytest.fixture
def made(records: list[str], tmp_path: Path) -> Path:
    pytest.importorskip("bokeh")
    assert main(["report", *records, "-o", str(tmp_path / "report.html")]) == 0
    return tmp_path / "report.html"


def test_the_page_is_one_file_that_loads_nothing(made: Path) -> None:
    text = made.read_text()
    page = Page()
    page.feed(text)
    assert page.foreign == [] and page.data == 1
    assert len(text) < 3_000_000 and "prefers-color-scheme:dark" in text and "@media print" in text
    assert "m &lt;1&gt;" in text
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert data[0]["argv"][2] == "</script>"


# Appended to a copy of the page: waits until all is drawn, rests the pointer on a point, and says what is shown.
PROBE = """<script>
const errors = [];
window.addEventListener("error", e => errors.push(e.message));
console.error = (...words) => errors.push(words.join(" "));
const wait = ms => new Promise(done => setTimeout(done, ms));
async function probe() {
  while (!(window.Bokeh && Bokeh.documents.length && Bokeh.documents.every(d => d.is_idle))) await wait(50);
  const views = Bokeh.documents.flatMap(d => d.roots()).map(root => Bokeh.index.get_by_id(root.id));
  const plot = views[0], line = plot.model.renderers.find(r => r.glyph.type === "Scatter");
  const x = plot.frame.x_scale.compute(line.data_source.get_array("x")[0]);
  const y = plot.frame.y_scale.compute(line.data_source.get_array("y")[0]);
  const box = plot.canvas_view.events_el.getBoundingClientRect();
  const at = {clientX: box.left + x, clientY: box.top + y, bubbles: true, composed: true,
    pointerType: "mouse", pointerId: 1, isPrimary: true};
  let shown = "";
  for (let k = 0; k < 40 && !shown; k++) {
    for (const kind of ["pointerover", "pointermove"])
      plot.canvas_view.events_el.dispatchEvent(new PointerEvent(kind, at));
    await wait(50);
    for (const tool of plot.tool_views.values())
      for (const tip of tool.ttmodels ? tool.ttmodels.values() : [])
        if (tip.visible) shown += tip.content.textContent;
  }
  const pre = document.createElement("pre");
  pre.id = "probe";
  pre.textContent = JSON.stringify({views: views.length, shown, errors});
  document.body.append(pre);
}
probe().catch(e => { const p = document.createElement("pre"); p.id = "probe"; p.textContent = JSON.stringify(
  {views: 0, shown: String(e.stack), errors}); document.body.append(p); });
</script></body>"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_draws_it_and_shows_values(made: Path, tmp_path: Path) -> None:
    page = tmp_path / "probed.html"
    page.write_text(made.read_text().replace("</body>", PROBE))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--window-size=1200,2000", "--virtual-time-budget=20000", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert 'id="probe">' in done.stdout, done.stderr[-2000:]
    seen = json.loads(unescape(done.stdout.split('id="probe">')[1].split("</pre>")[0]))
    assert seen["errors"] == [] and seen["views"] >= 8, seen
    assert "lwcc: 1.0 KiB, 1 us" in seen["shown"], seen


def test_without_bokeh_the_message_names_the_extra(records: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "bokeh.embed", None)
    with pytest.raises(ValueError, match=r"pip install 'lwcc\[report\]'"):
        report.html([report.load(records[0])])


def test_what_is_said_of_each_run(records: list[str]) -> None:
    loaded = [report.load(path) for path in records]
    rows = report.overview(loaded)
    assert rows[1][:4] == ["allreduce, 2 ranks", "2", "0", "0"]
    assert rows[2][:4] == ["train.py, 2 ranks", "1", "0", "0"]
    titles = [report.bench_title({**loaded[0], "net": net}) for net in ("none", "1gbit")]
    assert titles == ["allreduce, 2 ranks, network unshaped", "allreduce, 2 ranks, network 1gbit"]
    assert trainings.training_rows(loaded[1])[2][:5] == ["mpi", "3", "101 (100-102)", "0.50", "LWCC faster"]
    assert report.scaling(loaded) == [["command", "engine", "ranks", "samples/s", "efficiency"]]
    more = {**loaded[1], "np": 4}
    assert [row[4] for row in report.scaling([loaded[1], more])[1:3]] == ["100%", "50%"]


def test_a_gain_is_shown_where_it_is_claimed_and_against_the_best_other_engine() -> None:
    record = training_record()
    record["settings"]["slow"] = ""
    record["runs"] += [{**record["runs"][0], "variant": "slow", "samples_per_s": 20.0 + k} for k in range(3)]
    assert report.overview([record])[1] == ["train.py, 2 ranks", "1", "0", "0", "1.99x faster than mpi", "-", "-"]
    for run in record["runs"]:
        run["samples_per_s"] *= 4 if run["variant"] == "mpi" else 1
    assert report.overview([record])[1][1:6] == ["0", "0", "1", "-", "2.01x slower than mpi"]
    record["runs"][1]["samples_per_s"] = 150.0
    assert report.overview([record])[1][1:6] == ["0", "1", "0", "-", "-"]
    bench = bench_record()
    assert [row[4] for row in report.verdicts(bench)[1:]] == ["2.00x faster", "2.00x faster"]
    for row in bench["rows"]:
        row["rounds"] = row["rounds"][:2]
    assert [row[4] for row in report.verdicts(bench)[1:]] == ["-", "-"]
    assert report.overview([bench])[1][1:6] == ["0", "2", "0", "-", "-"]


def test_times_lwcc_is_the_ratio_of_the_medians_as_in_the_table_of_lwccrun() -> None:
    record = training_record()
    record["runs"] = record["runs"][:4]
    for run, speed in zip(record["runs"], (3813.0, 2645.0, 5148.0, 7545.0)):
        run["samples_per_s"] = speed
    assert trainings.training_rows(record)[2][2:4] == ["5095 (2645-7545)", "1.14"]


def test_runs_their_range_and_failures_are_shown() -> None:
    record = training_record()
    record["runs"][1].update(samples_per_s=None, step_s=[], losses=[], code=143)
    record["runs"].append({**record["runs"][1], "variant": "gloo", "code": 1})
    lwcc, mpi, gloo = trainings.training_rows(record)[1:]
    assert lwcc[:3] == ["lwcc", "3", "201 (200-202)"]
    assert mpi[:5] == ["mpi (exit 143)", "2 of 3", "102 (101-102)", "0.50", "noise"]
    assert mpi[-1] == "identical as printed"
    assert gloo == ["gloo", "0 of 1", "exit 1", *["-"] * 8]
    for made in (report.markdown([record]), report.latex([record])):
        assert "mpi (exit 143)" in made and "2 of 3" in made and "101-102" in made


def test_titles_tell_dtypes_and_buffers_apart() -> None:
    record = bench_record()
    assert report.bench_title(record) == "allreduce, 2 ranks"
    record.update(in_place=True, registered=True)
    for row in record["rows"]:
        row["dtype"] = "bfloat16"
    assert report.bench_title(record) == "allreduce, bfloat16, in place, registered, 2 ranks"
    assert report.parts_of([record])[1].title == report.overview([record])[1][0] == report.bench_title(record)


def test_a_network_is_short_in_headings_and_told_once_in_full() -> None:
    net = "network of namespaces: 2 nodes, 100mbit, delay 100us (tbf, burst 128 KiB), delay and loss by a relay in user"
    net += " space: at most about 4 Gbit/s with delay alone, 1 Gbit/s with loss, congestion control bbr"
    record = {**training_record(), "net": net}
    assert trainings.training_title(record) == "train.py, 2 ranks, network of 2 nodes, 100mbit, delay 100us"
    assert report.markdown([record]).count("burst 128 KiB") == 1
    record["net"] = "network of namespaces: 2 nodes, congestion control bbr"
    assert trainings.training_title(record) == "train.py, 2 ranks, network of 2 nodes"


def test_tables_for_papers(records: list[str], tmp_path: Path) -> None:
    md, tex = tmp_path / "r.md", tmp_path / "r.tex"
    assert main(["report", *records, "--markdown", str(md), "--latex", str(tex)]) == 0
    assert "| allreduce, 2 ranks | 2 | 0 | 0 |" in md.read_text()
    assert r"50\%" in tex.read_text() and tex.read_text().count(r"\begin{tabular}") == tex.read_text().count(
        r"\bottomrule"
    )


def test_latex_aligns_text_to_the_left_and_has_captions() -> None:
    record = training_record()
    record["settings"]["mpi"] = "--bind-to none " + "--mca coll_tuned_use_dynamic_rules 1 " * 3
    failed = {**record["runs"][0], "variant": "gloo", "samples_per_s": None, "step_s": [], "losses": [], "code": 1}
    record["runs"].append(failed)
    record["settings"]["gloo"] = ""
    made = report.latex([bench_record(), record])
    assert made.count(r"\begin{table}") == made.count(r"\end{table}") == made.count(r"\caption{") == 6
    labels = re.findall(r"\\label{(.*)}", made)
    assert len(set(labels)) == 6 and "tab:lwcc-2-verdicts-allreduce-2-ranks" in labels
    assert r"\begin{tabular}{rrrlllr}" in made  # size, LWCC, best other, which, LWCC is, verdict, of limit
    assert r"\begin{tabular}{lrrrlrrrrrl}" in made  # training
    assert r"\begin{tabular}{lp{0.6\linewidth}}" in made and r"-{}-bind-to none -{}-mca coll\_tuned" in made
    assert r"1 $\mu$s" in made and " us" not in made


def test_figures_for_papers(records: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    svg, pdf = tmp_path / "svg", tmp_path / "pdf"
    assert main(["report", *records, "--svg", str(svg), "--pdf", str(pdf)]) == 0
    pictures = sorted(svg.glob("*.svg"))
    names = {p.stem.split("-", 2)[2] for p in pictures}
    assert names == {"latency", "busbw", "speedup", "throughput", "loss", "loss-seconds", "steps", "breakdown"}
    assert [p.stem for p in pictures] == [p.stem for p in sorted(pdf.glob("*.pdf"))]
    texts = [xml.parse(picture).getroot() for picture in pictures]
    assert all(root.tag.endswith("svg") for root in texts)
    assert any("KiB" in (e.text or "") for e in texts[0].iter())


def test_where_nothing_was_told_there_is_no_page(tmp_path: Path, records: list[str], capsys: Any) -> None:
    record = training_record()
    for run in record["runs"]:
        run.update(samples_per_s=None, step_s=[], losses=[], code=1)
    (tmp_path / "failed.json").write_text(json.dumps(record))
    failed, page = str(tmp_path / "failed.json"), tmp_path / "r.md"
    assert main(["report", failed, "--markdown", str(page)]) == 1 and not page.exists()
    said = "no run has told samples/s, losses or steps (lwcc exit 1, mpi exit 1,"
    assert f"failed.json: {said}" in capsys.readouterr().err
    assert main(["report", failed, records[0], "--markdown", str(page)]) == 0
    assert f"**warning: {said}" in page.read_text() and said in capsys.readouterr().err


def test_warnings_of_a_run_are_on_the_page(tmp_path: Path) -> None:
    record = {**bench_record(), "machine": "Xeon, 2 cores, Linux", "load": 3.55, "np": 4}
    busy, shared = "warning: other work was on this machine (load 3.5)", "warning: 4 ranks shared 2 cores"
    for made in (report.markdown([record]), report.latex([record])):
        assert busy in made and shared in made
    assert "warning" not in report.markdown([{**record, "load": 0.1, "np": 2}])
    pytest.importorskip("bokeh")
    assert busy in report.html([record]) and shared in report.html([record])


def test_a_script_is_no_run(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "mine.py").write_text("import lwcc\n")
    assert main(["report", str(tmp_path / "mine.py")]) == 2
    assert "mine.py is no run of lwcc: give a directory" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "none")]) == 2
    assert "none: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{}", '{"kind": "x"}', "[1]"])
def test_other_files_are_refused(tmp_path: Path, text: str, capsys: Any) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert main(["report", str(path)]) == 2
    assert "lwcc report" in capsys.readouterr().err


def test_charts_of_nothing_and_of_one_point(tmp_path: Path) -> None:
    axes = charts.Axes("t", "x", "y")
    assert charts.lines(axes, [charts.Line("a", [])]) is None and charts.bars("t", "u", [("a", [])]) is None
    assert charts.lines(axes, [charts.Line("a", [charts.Point(1, 0)])]) is None
    pytest.importorskip("matplotlib")
    for flag in (True, False):
        one = charts.lines(axes._replace(log_x=flag, log_y=flag), [charts.Line("<a>", [charts.Point(5, 7)])])
        assert one is not None and list(charts.x_ticks(one)) == [5] and list(charts.y_ticks(one)) == [1, 2, 5, 10]
        figures.save(one, str(tmp_path / "one.svg"))
        assert "nan" not in (tmp_path / "one.svg").read_text()
