"""Every collective on tensors, by real ranks; the cases are in cases_ops.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
CASES = Path(__file__).with_name("cases_ops.py")


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_every_collective_on_tensors(run_ranks: Any, n: int) -> None:
    done = run_ranks(n, CASES, timeout=180)
    held = re.findall(r"held: (case_\w+)", done.out)
    assert held == re.findall(r"^def (case_\w+)", CASES.read_text(), re.M), done.tail()
