"""DistributedOptimizer by real ranks, against one process on the whole batch; the cases are in cases_optimizer*.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
HERE = Path(__file__).parent

DYING = """
import os, signal, torch, lwcc_torch as hvd
hvd.init()
model = torch.nn.Linear(20, 20)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(1000):
    if step == 3 and hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        optimizer.zero_grad()
        model(torch.ones(2, 20)).sum().backward()
        optimizer.step()
    except hvd.PeerLost as error:
        assert "rank 1" in str(error) and step >= 3, error
        print("held: PeerLost at rank", hvd.rank(), flush=True)
        raise SystemExit(7)
"""

RAISING = """
import torch, lwcc_torch as hvd
hvd.init()
model = torch.nn.Linear(4, 4)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(2):
    model(torch.ones(2, 4)).sum().backward()
    if optimizer._reducer._order is not None:
        raise RuntimeError("MY OWN CAUSE")
    optimizer.step()
"""


def run_cases(run_ranks: Any, n: int, file: str) -> None:
    done = run_ranks(n, HERE / file, timeout=300)
    held = re.findall(r"held: (case_\w+)", done.out)
    assert held == re.findall(r"^def (case_\w+)", (HERE / file).read_text(), re.M), done.tail()


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_ranks_train_as_one_process_would(run_ranks: Any, n: int) -> None:
    run_cases(run_ranks, n, "cases_optimizer.py")


@pytest.mark.parametrize("n", [1, 2, 3])
def test_scripts_may_use_the_optimizer_as_they_do(run_ranks: Any, n: int) -> None:
    run_cases(run_ranks, n, "cases_optimizer_uses.py")


@pytest.mark.parametrize("n", [2, 3])
def test_ranks_may_freeze_what_others_train(run_ranks: Any, n: int) -> None:
    run_cases(run_ranks, n, "cases_frozen.py")


def test_a_compiled_model_trains_right(run_ranks: Any) -> None:
    run_cases(run_ranks, 2, "cases_compile.py")


def test_a_dead_rank_surfaces_in_the_step(run_ranks: Any) -> None:
    done = run_ranks(3, DYING, prelude=False, code=None)
    assert done.code != 0 and "held: PeerLost at rank" in done.out, done.tail()


def test_a_rank_that_raises_with_gradients_under_way_is_heard(run_ranks: Any) -> None:
    done = run_ranks(2, RAISING, prelude=False, code=None)
    assert done.code != 0 and "MY OWN CAUSE" in done.err and "Exception ignored" not in done.err, done.tail()
