"""broadcast_parameters, broadcast_optimizer_state and objects, by real ranks; the cases are in cases_state.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
CASES = Path(__file__).with_name("cases_state.py")


@pytest.mark.parametrize("n", [1, 2, 3])
def test_all_ranks_get_the_state_of_one(run_ranks: Any, n: int) -> None:
    done = run_ranks(n, CASES, timeout=180)
    held = re.findall(r"held: (case_\w+)", done.out)
    assert held == re.findall(r"^def (case_\w+)", CASES.read_text(), re.M), done.tail()
