"""Every collective on tensors, by real ranks; the cases are in cases_ops.py and cases_graphs.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow")
HERE = Path(__file__).parent


def run_cases(run_ranks: Any, n: int, file: str) -> None:
    done = run_ranks(n, HERE / file, timeout=300, env={"TF_CPP_MIN_LOG_LEVEL": "2"})
    held = re.findall(r"held: (case_\w+)", done.out)
    assert held == re.findall(r"^def (case_\w+)", (HERE / file).read_text(), re.M), done.tail()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_every_collective_on_tensors(run_ranks: Any, n: int) -> None:
    run_cases(run_ranks, n, "cases_ops.py")


def test_functions_run_collectives_side_by_side(run_ranks: Any) -> None:
    run_cases(run_ranks, 2, "cases_graphs.py")
