"""DistributedOptimizer by real ranks, against one process on the whole batch; the cases are in cases_optimizer*.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
HERE = Path(__file__).parent

COMPILED = """
import torch, lwcc_torch as hvd
from casebook import same_everywhere
torch.set_num_threads(1)
hvd.init()
torch.manual_seed(3)
model, alone = (torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)) for _ in range(2))
alone.load_state_dict(model.state_dict())
compiled = torch.compile(model)
optimizer = hvd.DistributedOptimizer(torch.optim.AdamW(compiled.parameters(), lr=0.01), compiled.named_parameters())
plain = torch.optim.AdamW(alone.parameters(), lr=0.01)
for step in range(4):
    x = torch.randn(2 * hvd.size(), 6)
    for m, o, part in ((compiled, optimizer, x[2 * hvd.rank() :][:2]), (alone, plain, x)):
        o.zero_grad()
        m(part).square().mean().backward()
        o.step()
same_everywhere(model.parameters())
for p, q in zip(model.parameters(), alone.parameters()):
    torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)
print("held: compiled")
"""

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


def test_a_compiled_model_trains_right(run_ranks: Any) -> None:
    done = run_ranks(2, COMPILED, prelude=False, timeout=300, env={"PYTHONPATH": str(HERE)})
    assert done.out.count("held: compiled") == 2, done.tail()


def test_a_dead_rank_surfaces_in_the_step(run_ranks: Any) -> None:
    done = run_ranks(3, DYING, prelude=False, code=None)
    assert done.code != 0 and "held: PeerLost at rank" in done.out, done.tail()
