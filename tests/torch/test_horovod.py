"""What Horovod's scripts rely on beyond single collectives, by real ranks; the cases are in cases_*.py."""

from __future__ import annotations

import re
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
