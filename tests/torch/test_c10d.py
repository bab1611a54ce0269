"""The backend lwcc of torch.distributed by real ranks; the cases are in cases_c10d*.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("n", "file"),
    [
        pytest.param(1, "cases_c10d_ops.py", marks=pytest.mark.slow),
        pytest.param(2, "cases_c10d_ops.py", marks=pytest.mark.slow),
        (3, "cases_c10d_ops.py"),
        (2, "cases_c10d_training.py"),
        pytest.param(3, "cases_c10d_training.py", marks=pytest.mark.slow),
        (4, "cases_c10d_groups.py"),
        (2, "cases_c10d_compile.py"),
    ],
)
def test_torch_distributed_over_lwcc(run_ranks: Any, n: int, file: str) -> None:
    done = run_ranks(n, HERE / file, timeout=180)
    held = re.findall(r"held: (case_\w+)", done.out)
    assert held == re.findall(r"^def (case_\w+)", (HERE / file).read_text(), re.M), done.tail()
