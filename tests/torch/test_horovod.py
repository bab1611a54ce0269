"""What Horovod's scripts rely on beyond single collectives, by real ranks; the cases are in cases_*.py."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
HERE = Path(__file__).parent


def run_cases(run_ranks: Any, n: int, file: str) -> None:
    done = run_ranks(n, HERE / file, timeout=300)
    held = re.findall(r"held: (case_\w+)", done.out)
    assert held == re.findall(r"^def (case_\w+)", (HERE / file).read_text(), re.M), done.tail()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_ranks_join_when_they_are_out_of_data(run_ranks: Any, n: int) -> None:
    run_cases(run_ranks, n, "cases_join.py")


@pytest.mark.parametrize("n", [2, 3])
def test_the_rest_of_the_interface(run_ranks: Any, n: int) -> None:
    run_cases(run_ranks, n, "cases_horovod.py")


@pytest.mark.parametrize("n", [3])
def test_whole_scripts(run_ranks: Any, n: int) -> None:
    run_cases(run_ranks, n, "cases_scripts.py")


KILLED = """
import os, signal, torch, lwcc_torch as hvd
hvd.init()
for step in range(1000):
    hvd.allreduce(torch.ones(4), name=f"step.{step}")
    if step == 20 and hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_timeline_is_whole_after_a_kill(run_ranks: Any, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    path.write_text("[not json, and of another job")
    run_ranks(3, KILLED, prelude=False, code=None, env={"HOROVOD_TIMELINE": str(path)})
    events = json.loads(path.read_text())
    for rank in range(3):
        assert sum(e["pid"] == rank and e["ph"] == "X" and e["name"].startswith("step.") for e in events) >= 20


def test_run_starts_ranks_and_returns_their_results_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    import lwcc_torch as hvd

    def numbers(base: int, *, factor: int = 1) -> Any:
        import torch

        import lwcc_torch as hvd

        hvd.init()
        return hvd.rank(), float(hvd.allreduce(torch.tensor([float(base)]), op=hvd.Sum)) * factor

    def bad() -> None:
        import lwcc_torch as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise KeyError("rank one is unhappy")
        hvd.barrier()

    assert hvd.run(numbers, args=(5,), kwargs={"factor": 2}, np=3) == [(0, 30.0), (1, 30.0), (2, 30.0)]
    with pytest.raises(RuntimeError, match=r"rank 1 of 2 raised(.|\n)*rank one is unhappy"):
        hvd.run(bad, num_proc=2)
    with pytest.raises(ValueError, match="use_mpi"):
        hvd.run(numbers, use_mpi=True)
    with pytest.raises(ValueError, match="np=2 and num_proc=3"):
        hvd.run(numbers, np=2, num_proc=3)


MAIN_SCRIPT = """
import sys, lwcc
def numbers(factor):
    lwcc.init()
    return lwcc.rank() * factor, lwcc.broadcast_object(lambda: factor)()
if __name__ == "__main__":
    print(lwcc.run(numbers, args=(5,), np=2))
    sys.modules["cloudpickle"] = None  # as if it were not installed
    for what, job in ((numbers, "numbers"), (lambda: 1, "<lambda>")):
        try:
            lwcc.run(what, args=(5,), np=2)
        except TypeError as error:
            assert job in str(error) and "pip install cloudpickle" in str(error), error
        else:
            raise AssertionError(job)
    print("refused")
"""


def test_run_takes_functions_of_the_main_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(MAIN_SCRIPT)
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 and "[(0, 5), (5, 5)]\nrefused" in done.stdout, done.stdout + done.stderr
