"""Reading what a run has shown, the table, and the command line of comparisons; no ranks are started."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from lwcc.launcher import baseline, logdir, measure, mpi, report
from lwcc.launcher.args import parse
from lwcc.launcher.engines import Settings
from lwcc.launcher.spawn import CannotRun


@pytest.mark.parametrize(
    ("text", "speed"),
    [("1887 samples/s on 2 ranks", 1887.0), ("Img/sec per CPU: 12\n total 21.5 img/sec", 21.5),
     ("9.0 img/sec per rank\nTotal img/sec on 2 ranks: 18.1 +-0.2", 18.1),
     ("images/s: 1e3", 1000.0), ("3 images per second\n4.5 images per second", 4.5), ("nothing", None)],
)  # fmt: skip
def test_speed_is_read_from_the_last_line_that_says_it(text: str, speed: Any) -> None:
    run = measure.Run("lwcc", 0, 1.0)
    measure.read_output(run, text)
    assert run.samples_per_s == speed


def test_losses_and_accuracy() -> None:
    run = measure.Run("lwcc", 0, 1.0)
    measure.read_output(
        run, "epoch 1  loss 0.9202  test accuracy 0.8920\nepoch 2 loss=1.5e-1 accuracy: 0.95\ngloss 3\n"
    )
    assert run.losses == [0.9202, 0.15]
    assert run.accuracy == 0.95


def test_journals_give_steps_and_counters(tmp_path: Path) -> None:
    for rank, shift in ((0, 0), (1, 5)):
        steps = [[n * 10 + (shift if n == 2 else 0), n, n] for n in range(4)]
        stats = {"waited_ns": 7, "busy_ns": 9, "bytes": 100, "allreduces": [0, 3], "engine": 1}
        (tmp_path / f"rank-{rank}.json").write_text(json.dumps({"rank": rank, "stats": stats, "steps": steps}))
    run = measure.Run("mpi", 0, 1.0)
    measure.read_journals(run, str(tmp_path))
    assert [round(s * 1e9) for s in run.step_s] == [10, 15, 10]
    assert (run.nbytes, run.allreduces, run.engine) == (100, [0, 3], 1)


JOURNAL = {"rank": 1, "steps": [[0, 0, 0], [9, 1, 2]],
           "stats": {"waited_ns": 7, "busy_ns": 9, "bytes": 100, "allreduces": [0, 3], "engine": 1}}  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [json.dumps(JOURNAL)[:-9], "", "[]", "7", '{"rank": 0}', "\xff", json.dumps({**JOURNAL, "steps": [[1, 2]]}),
     json.dumps({**JOURNAL, "rank": "x"}), json.dumps({**JOURNAL, "stats": {}})],
)  # fmt: skip
def test_a_broken_or_foreign_journal_is_named_and_skipped(tmp_path: Path, capsys: Any, text: str) -> None:
    (tmp_path / "rank-0.json").write_bytes(text.encode("latin-1"))
    (tmp_path / "rank-1.json").write_text(json.dumps(JOURNAL))
    run = measure.Run("lwcc", 0, 1.0)
    measure.read_journals(run, str(tmp_path))
    assert [rank["rank"] for rank in run.ranks] == [1] and run.nbytes == 100
    told = capsys.readouterr().err
    assert f"lwccrun: {tmp_path / 'rank-0.json'} is no journal of a rank" in told and told.count("\n") == 1


def test_only_our_own_files_of_an_earlier_run_are_cleared(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    ours = ["rank-0/stdout.log", "rank-0/stdout.times", "rank-3/stderr.log", "rank.11/stdout", "journal/rank-3.json",
            "journal/rank-4.json.part"]  # fmt: skip
    theirs = ["rank-0/notes.txt", "rank-x/stdout.log", "journal/rank-x.json", "stdout.log", "results/stdout.log"]
    for name in [*ours, *theirs]:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).touch()
    other.mkdir()
    (other / "stdout.log").touch()
    (run / "rank-9").symlink_to(other)
    logdir.clear(str(run))
    left = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    assert left == sorted(theirs) and (other / "stdout.log").exists()
    assert not (run / "rank-3").exists()
    logdir.clear(str(tmp_path / "none"))


def test_an_earlier_runs_ranks_do_not_count(lwccrun: Any, tmp_path: Path) -> None:
    old = tmp_path / "runs" / "lwcc-1"
    for path in (old / "journal" / "rank-1.json", old / "rank-7" / "stdout.log"):
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(JOURNAL))
    script = lwccrun.script("print('loss 1.0')")
    code, _, err = lwccrun("-np", "2", "--baseline", "gloo", "--log-dir", str(tmp_path / "runs"), script).finish()
    assert code == 0 and "journal" not in err
    record = json.loads((tmp_path / "runs" / "run.json").read_text())
    assert [run["nbytes"] for run in record["runs"]] == [None, None]
    assert sorted(path.name for path in old.iterdir()) == ["rank-0", "rank-1", "run.json"]


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [([1.0, 0.5], [1.0, 0.5], "identical as printed"), ([1.0, 0.5], [1.0, 0.50001], "agree within fp32 rounding"),
     ([1.0], [2.0], "differ"), ([1.0], [], "different numbers of losses"), ([], [], "no losses to compare")],
)  # fmt: skip
def test_agreement(ours: list[float], theirs: list[float], verdict: str) -> None:
    assert measure.agreement(ours, theirs)[0] == verdict


def test_the_table_has_a_row_for_each_engine_and_the_ratio() -> None:
    runs = [
        measure.Run("lwcc", 0, 1.0, 200.0, [0.1, 0.2], 0.5, 0.6, 1 << 20, [0, 0, 3], [0.5], 0.9, 0),
        measure.Run("mpi", 0, 1.0, 100.0, [0.2, 0.4], 0.5, 0.6, 1 << 20, [0, 0, 3], [0.5], 0.9, 1),
        measure.Run("gloo", 3, 1.0),
    ]
    settings = {"lwcc": "as it comes", "mpi": "--bind-to none", "gloo": "as it comes"}
    text = baseline.table({"np": 2, "machine": "m", "mpi": "Open MPI", "settings": settings}, runs)
    lines = text.splitlines()
    assert [line.split()[:3] for line in lines[2:4]] == [["lwcc", "200", "1.00"], ["mpi", "100", "0.50"]]
    assert "gloo (exit 3)" in text or "exit 3" in lines[4]
    assert "losses of lwcc and mpi: identical as printed" in text
    assert "settings of mpi: --bind-to none" in text
    assert "lwcc: 3 x 4 B" in text


@pytest.mark.parametrize(
    "argv",
    [["--baseline", "nccl"], ["--repeat", "3"], ["--mpi-best", "--baseline", "gloo"],
     ["--engine", "mpi", "--baseline", "gloo"], ["--engine", "x"],
     ["--mpi-settings", "mpi-ucx"]],
)  # fmt: skip
def test_senseless_comparisons_are_refused(argv: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["-np", "2", *argv, "x.py"])
    assert ended.value.code == 2
    assert "lwccrun: error:" in capsys.readouterr().err


PARTS = frozenset({"pml/ucx", "coll/xhc", "coll/acoll", "coll/han", "coll/sm", "coll/tuned"})


def test_best_settings_differ_from_the_plain_ones() -> None:
    for kind in ("openmpi", "mpich", "intel"):
        found = mpi.Mpi(kind, kind, "/x/mpirun", PARTS)
        for size in (2, 1000):
            plain, best = mpi.plain(found, size), mpi.best(found, size)
            assert best and all(b.text() != plain.text() for b in best), (kind, size)
            assert len({b.name for b in best} | {plain.name}) == len(best) + 1
            assert len({b.text() for b in best}) == len(best)


def test_only_what_the_mpi_has_is_tried() -> None:
    names = [s.name for s in mpi.best(mpi.Mpi("openmpi", "Open MPI", "/x/mpirun", PARTS), 2)]
    assert {"mpi-ucx", "mpi-xhc", "mpi-acoll", "mpi-han", "mpi-sm", "mpi-tuned-ring"} <= set(names)
    fewer = [s.name for s in mpi.best(mpi.Mpi("openmpi", "Open MPI", "/x/mpirun", PARTS - {"coll/xhc"}), 2)]
    assert [name for name in names if name != "mpi-xhc"] == fewer
    unknown = mpi.Mpi("openmpi", "Open MPI", "/nowhere/mpirun")  # without its tool ompi_info
    assert [s.name for s in mpi.best(unknown, 2)] == ["mpi-blocking"]
    assert mpi.named(unknown, 2, "mpi-blocking").variables == {"LWCC_MPI_CALLS": "blocking"}
    with pytest.raises(CannotRun, match="mpi-xhc: Open MPI has mpi, mpi-blocking"):
        mpi.named(unknown, 2, "mpi-xhc")


def test_losses_have_the_times_of_their_lines(tmp_path: Path) -> None:
    (tmp_path / "stdout.times").write_text("0.5\n1.25\n2.0\n")
    run = measure.Run("lwcc", 0, 1.0)
    stamps = measure.read_stamps(str(tmp_path / "stdout.log"))
    measure.read_output(run, "start\nloss 2.0\nloss 1.0\n", stamps)
    assert run.losses == [2.0, 1.0] and run.loss_at_s == [1.25, 2.0]
    measure.read_output(run, "start\nloss 2.0\n\n\nloss 1.0\n", stamps)
    assert run.loss_at_s == [] and measure.read_stamps(str(tmp_path / "none.log")) == []


def test_the_cause_is_shown_not_what_followed_from_it() -> None:
    trace = ["Traceback (most recent call last):", '  File "t.py", line 5, in <module>', "    step()"]
    mixed = [*trace, "KeyError: 'bad batch'", *trace, "lwcc.errors.ShutDown: rank 1 has left"]
    assert report._interesting(mixed)[-1] == "KeyError: 'bad batch'"
    assert report._interesting(mixed[4:])[-1].startswith("lwcc.errors.ShutDown")
    assert report._interesting([*mixed, *trace, "ValueError: x", "bye"])[-2:] == ["ValueError: x", "bye"]


def test_the_command_starts_every_rank_through_the_translator() -> None:
    found = mpi.Mpi("mpich", "MPICH", "/x/mpiexec")
    command = mpi.command(found, Settings("mpi", ("-bind-to", "none")), 3, "/pipes", ["python", "t.py"])
    assert command[:5] == ["/x/mpiexec", "-bind-to", "none", "-np", "3"]
    assert command[-4].endswith("mpirank.py") and command[-3:] == ["/pipes", "python", "t.py"]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_whole_comparison(lwccrun: Any, tmp_path: Path, signum: int, code: int) -> None:
    script = lwccrun.script("import signal\nprint('ready', flush=True)\nwhile True: signal.pause()")
    folder = tmp_path / "runs"
    job = lwccrun("-np", "2", "--baseline", "gloo", "--repeat", "2", "--log-dir", str(folder), script)
    job.read_until(b"ready", 2)
    got, out, err = job.kill(signum).finish()
    assert got == code and f"exit {code}" in out
    assert "ended by a signal; left out: gloo-1, lwcc-2, gloo-2" in err
    record = json.loads((folder / "run.json").read_text())
    assert [run["variant"] for run in record["runs"]] == ["lwcc"] == list(record["settings"])


@pytest.mark.parametrize(("ends", "code"), [(0, 1), (3, 3)])
def test_the_table_is_shown_also_if_it_cannot_be_written(lwccrun: Any, tmp_path: Path, ends: int, code: int) -> None:
    folder = tmp_path / "runs"
    (folder / "run.json").mkdir(parents=True)
    script = lwccrun.script(f"import os\nprint('loss 1.0')\nraise SystemExit({ends} * (os.environ['RANK'] == '0'))")
    got, out, err = lwccrun("-np", "2", "--baseline", "gloo", "--log-dir", str(folder), script).finish()
    assert got == code and "losses of lwcc and gloo: identical as printed" in out and "written:" not in out
    assert err.splitlines()[-1] == f"lwccrun: {folder / 'run.json'} cannot be written: Is a directory"
    assert not list(folder.glob("*.part"))


def test_a_run_without_room_for_its_logs_does_not_lose_the_others(lwccrun: Any, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "gloo-1").touch()  # a file in the place of a folder
    script = lwccrun.script("print('loss 1.0')")
    code, out, err = lwccrun("-np", "2", "--baseline", "gloo", "--log-dir", str(tmp_path / "runs"), script).finish()
    assert code != 0 and "gloo could not run: " in err
    rows = [line.split() for line in out.splitlines()]
    assert ["gloo", "exit", str(code)] in rows and any(row[:1] == ["lwcc"] for row in rows)


@pytest.mark.parametrize(("text", "hint"), [("raise SystemExit(3)", False), ("print('loss 1.0')", True)])
def test_a_page_is_proposed_only_where_there_is_something_to_show(
    lwccrun: Any, tmp_path: Path, text: str, hint: bool
) -> None:
    folder = tmp_path / "runs"
    job = lwccrun("-np", "2", "--baseline", "gloo", "--log-dir", str(folder), lwccrun.script(text))
    code, out, _ = job.finish()
    assert code == (0 if hint else 3) and f"written: {folder / 'run.json'}" in out
    assert ("lwcc report" in out) == hint and out.count("exit 3") == (0 if hint else 2)


def test_the_best_settings_of_an_mpi_have_rows_also_where_only_they_told_something() -> None:
    names = ["lwcc", "mpi", "mpi-ucx", "mpi-xhc"]
    runs = [measure.Run(name, 0 if name == "mpi-ucx" else 3, 1.0) for name in names]
    runs[2].samples_per_s = 50.0
    record = {"np": 2, "machine": "m", "mpi": "Open MPI", "settings": dict.fromkeys(names, "as it comes")}
    rows = [line.split() for line in baseline.table(record, runs).splitlines()]
    assert [row[:3] for row in rows if row[0] in names] == [
        ["lwcc", "exit", "3"], ["mpi", "exit", "3"], ["mpi-ucx", "50", "-"], ["mpi-xhc", "exit", "3"]
    ]  # fmt: skip
