"""Every collective on tensors, by real ranks; the cases are in cases_ops.py and cases_grid.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
HERE = Path(__file__).parent


def holds(run_ranks: Any, n: int, file: str) -> None:
    done = run_ranks(n, HERE / file, timeout=240)
    held = re.findall(r"held: (case_\w+)", done.out)
    assert held == re.findall(r"^def (case_\w+)", (HERE / file).read_text(), re.M), done.tail()


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_every_collective_on_tensors(run_ranks: Any, n: int) -> None:
    holds(run_ranks, n, "cases_ops.py")


@pytest.mark.parametrize("n", [2, 3, 4])
def test_every_call_of_every_type_form_layout_and_set(run_ranks: Any, n: int) -> None:
    holds(run_ranks, n, "cases_grid.py")
