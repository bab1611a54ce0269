"""`lwcc bench`: its arithmetic, and one small run of each kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lwcc import bench, limited, tune
from lwcc.__main__ import main
from lwcc.launcher.args import LaunchSpec
from lwcc.launcher.command import _with_cost
from lwcc.launcher.net import parse_net


def test_sizes() -> None:
    assert [bench.parse_size(t) for t in ("8", "1K", "2.5k", "64M", "1G")] == [8, 1024, 2560, 64 << 20, 1 << 30]
    assert bench.sizes_between(8, 1024, 4) == [8, 32, 128, 512]
    for first, last, factor in ((0, 8, 2), (8, 4, 2), (8, 16, 1)):
        with pytest.raises(ValueError):
            bench.sizes_between(first, last, factor)
    with pytest.raises(ValueError):
        bench.parse_size("1.5")


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    assert bench.busbw_factor("allreduce", 4) == 1.5
    assert bench.busbw_factor("allgather", 4) == 0.75
    assert bench.busbw_factor("broadcast", 4) == 1.0


def test_the_link_is_a_limit() -> None:
    assert bench.link_seconds("allreduce", 2, 125_000_000, "1gbit") == 1.0
    assert bench.link_seconds("allreduce", 2, 125_000_000, "none") == 0.0


def test_a_fit_finds_the_line() -> None:
    rows = [{"size": n, "t_med": 2e-6 + 3e-10 * n} for n in (8, 1024, 65536, 1 << 22)]
    alpha, beta = bench.fit(rows)
    assert alpha == pytest.approx(2e-6, rel=1e-6) and beta == pytest.approx(3e-10, rel=1e-6)


def run(tmp_path: Path, *arguments: str, code: int = 0) -> tuple[str, Any]:
    env = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "lwcc", "bench", *arguments, "--rounds", "1", "--budget", "0.002"]
    command += ["--json", str(tmp_path / "out.json")]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr, json.loads((tmp_path / "out.json").read_text()) if code == 0 else None


@pytest.mark.parametrize(
    "arguments",
    [
        ("allreduce", "-np", "3", "--algorithm", ",ring", "--dtype", "float64"),
        ("broadcast", "--registered"),
        ("allgather", "-np", "3"),
        ("reducescatter", "--dtype", "int32"),
        ("reducescatter", "-np", "3", "--dtype", "bfloat16"),
        ("allreduce", "-np", "3", "--algorithm", ",ring", "--dtype", "bool", "--in-place"),
        ("alltoall", "-np", "3", "--registered"),
        ("barrier",),
    ],
)
def test_every_collective_is_timed_and_right(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    out, record = run(tmp_path, *arguments, "-b", "64", "-e", "64K", "-f", "32")
    rows = record["rows"]
    assert rows and all(row["wrong"] == 0 and row["t_med"] > 0 and row["vs_best"] >= 1 for row in rows)
    assert len(rows) == {"allreduce": 6, "barrier": 1}.get(arguments[0], 3), out
    assert all(name in out for name in bench.HEADS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("allreduce", "-np", "0"), "-np 0: expected at least 1"),
        (("p2p", "-np", "3"), "-np 3: expected 2"),
        (("allreduce", "--dtype", "float33"), "--dtype float33: expected one of uint8"),
        (("allreduce", "-b", "1Q"), "'1Q' is not a number of bytes"),
        (("allreduce", "-b", "nan"), "'nan' is not a number of bytes"),
        (("allreduce", "--rounds", "0"), "--rounds 0: expected at least 1"),
        (("allreduce", "--budget", "0"), "--budget 0: expected seconds"),
        (("allreduce", "--limit", "-1"), "--limit -1: expected seconds"),
        (("allreduce", "--algorithm", "ring,rign"), "allreduce has no algorithm 'rign'; known: circulant"),
        (("barrier", "--json", "no/such/folder/x.json"), "No such file or directory: 'no/such/folder/x.json'"),
        (("barrier", "--vs", "mpi,nccl"), "--vs nccl: known are mpi, gloo"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_a_rank_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "run_engine", lambda *_: pytest.fail("a rank would start"))
        patch.chdir(tmp_path)
        assert main(["bench", *arguments]) != 0
    assert said in capsys.readouterr().err


def test_a_limit_leaves_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"size": 64, "count": 16, "algorithm": "", "iterations": 9, "t_med": 1.0, "t_p99": 1.0, "cv": 0.0,
           "wrong": 0, "t_fold": 1.0, "fold_nbytes": 64, "shared_memory": True}  # fmt: skip
    launched: list[str] = []

    def launch(command: list[str], seconds: float) -> limited.Ended:
        launched.append(command[command.index("--engine") + 1])
        late = launched[-1] == "gloo" or len(launched) > 4
        return limited.Ended(None if late else 0, json.dumps(row) + '\n{"size": 12' * late, "")

    monkeypatch.setattr(bench, "run_limited", launch)
    out = tmp_path / "out.json"
    words = ["--vs", "gloo", "--rounds", "5", "--limit", "7", "--json", str(out)]
    assert main(["bench", "allreduce", "-b", "64", "-e", "64", *words]) == 124
    shown = capsys.readouterr()
    assert [line.split(";")[0] for line in shown.err.splitlines()] == [
        f"lwcc bench: {name} reached the limit of 7 s for one round (--limit)" for name in ("gloo", "lwcc")
    ]
    assert launched == ["own", "gloo", "own", "own", "own"]
    record = json.loads(out.read_text())
    assert {r["name"]: len(r["rounds"]) for r in record["rows"]} == {"lwcc": 4, "gloo": 1}
    assert record["limit_reached"] == ["gloo", "lwcc"] and " lwcc " in shown.out and " gloo " in shown.out
    assert main(["report", str(out)]) == 0


def test_a_round_of_real_ranks_is_ended_at_the_limit(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lwcc", "bench", "allreduce", "-b", "1K", "-e", "1K", "--limit", "0.1"]
    command += ["--json", "out.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 124, done.stdout + done.stderr
    assert "lwcc reached the limit of 0.1 s" in done.stderr and "Traceback" not in done.stderr
    assert json.loads((tmp_path / "out.json").read_text())["rows"] == []
    command = [sys.executable, "-m", "lwcc", "report", "out.json"]  # of which there is nothing to draw
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert shown.returncode == 1 and "out.json" in shown.stderr and "Traceback" not in shown.stderr, shown.stderr


@pytest.mark.parametrize("deaf", [False, True])
def test_a_command_that_reached_its_limit_may_tidy_up_for_some_seconds(
    monkeypatch: pytest.MonkeyPatch, deaf: bool
) -> None:
    monkeypatch.setattr(limited, "TIDY_S", 0.5)
    handler = "signal.SIG_IGN" if deaf else "lambda *_: (print('tidied', flush=True), sys.exit(3))"
    code = f"import signal, sys\nsignal.signal(signal.SIGTERM, {handler})\nprint('up', flush=True)\n"
    began = time.monotonic()
    done = limited.run_limited([sys.executable, "-c", code + "signal.pause()"], 3.0)
    assert done == limited.Ended(None, "up\n" if deaf else "up\ntidied\n", "")
    assert time.monotonic() - began < 30


def test_an_interrupted_command_is_ended_too() -> None:
    code = "import os, signal\nos.kill(os.getppid(), signal.SIGINT)\nsignal.pause()"
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        limited.run_limited([sys.executable, "-c", code], 60.0)
    assert time.monotonic() - began < 30


def test_a_wire_is_fitted_and_stored(tmp_path: Path) -> None:
    out, record = run(tmp_path, "p2p", "-b", "1K", "-e", "1M", "-f", "32", "--transport", "tcp")
    stored = json.loads((tmp_path / "lwcc" / "cost.json").read_text())
    assert stored == record["cost"] and stored["alpha_s"] + stored["beta_s_per_byte"] > 0, out
    shown = subprocess.run(
        [sys.executable, "-c", "import os; print('LWCC_COST is', os.environ.get('LWCC_COST'))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "None" in shown.stdout
    script = tmp_path / "show.py"
    script.write_text("import os\nprint('cost', os.environ['LWCC_COST'])\nimport lwcc\nlwcc.init()\nlwcc.barrier()\n")
    env = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "LWCC_TRANSPORT": "tcp"}
    done = subprocess.run(
        [sys.executable, "-m", "lwcc.launcher", "-np", "2", str(script)],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.count(f"cost {stored['alpha_s']:.6g},") == 2, done.stdout + done.stderr
    assert "ignored" not in done.stderr


def test_the_fastest_algorithm_of_each_size_becomes_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {1024: {"a": 1.0, "b": 2.0}, 4096: {"a": 1.0, "b": 2.0}, 16384: {"a": 3.0, "b": 2.0}}
    choices = tune.choose(times)
    assert choices == [("a", 8192), ("b", 0)]
    assert tune.line("allreduce", choices) == "allreduce=a@8192,allreduce=b"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    tune.store(4, "", "allreduce=a")
    tune.store(2, "", "allreduce=b")
    tune.store(2, "1gbit", "allreduce=c")
    bench.keep({"alpha_s": 1e-5, "beta_s_per_byte": 1e-9, "gamma_s_per_byte": 0.0, "wire": "1gbit"})
    kept = json.loads((tmp_path / "lwcc" / "cost.json").read_text())
    assert kept["tuned"] == {"4": "allreduce=a", "2": "allreduce=b", "2 1gbit": "allreduce=c"}
    for name in ("LWCC_COST", "LWCC_TUNED"):
        monkeypatch.delenv(name, raising=False)
    assert _with_cost(LaunchSpec(2)).extra_env == {"LWCC_TUNED": "allreduce=b"}  # a lab's cost is not this machine's
    lab = _with_cost(LaunchSpec(2, net=parse_net("nodes=2,rate=1gbit"))).extra_env
    assert lab == {"LWCC_TUNED": "allreduce=c", "LWCC_COST": "1e-05,1e-09,0"}
    assert _with_cost(LaunchSpec(2, net=parse_net("1gbit,delay=1ms"))).extra_env == {}


def test_tune_measures_and_lwccrun_hands_the_table_on(tmp_path: Path) -> None:
    env = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "lwcc", "tune", "-np", "2", "--transport", "tcp", "--rounds", "1"]
    command += ["-b", "1K", "-e", "64K", "-f", "64", "--budget", "0.01"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "# LWCC_TUNED=allreduce=" in done.stdout, done.stdout + done.stderr
    script = tmp_path / "show.py"
    script.write_text("import os\nprint('table', os.environ['LWCC_TUNED'])\nimport lwcc\nlwcc.init()\nlwcc.barrier()\n")
    shown = subprocess.run(
        [sys.executable, "-m", "lwcc.launcher", "-np", "2", str(script)],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert shown.returncode == 0 and shown.stdout.count("table allreduce=") == 2, shown.stdout + shown.stderr


@pytest.mark.parametrize("arguments", [("allreduce", "--vs", "nccl"), ("p2p", "-np", "3"), ("allreduce", "-b", "x")])
def test_senseless_measurements_are_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    out, _ = run(tmp_path, *arguments, code=2)
    assert "lwcc: " in out and "Traceback" not in out
