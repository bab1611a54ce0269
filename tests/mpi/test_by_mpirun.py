"""Ranks that an MPI's launcher starts and that run on LWCC: no lwccrun, no address, no MPI in the process."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import os, sys
import numpy as np
import lwcc
for turn in range(2):
    lwcc.init()
    out = lwcc.allreduce(np.full(4, lwcc.rank()), op=lwcc.Sum, name="t")
    assert (lwcc.size(), out.tolist()) == (3, [3, 3, 3, 3]), out
    lwcc.barrier()
    if turn == 0:
        lwcc.shutdown()
os.write(1, f"fine {lwcc.rank()}\\n".encode())
if "die" in sys.argv:
    if lwcc.rank() == 1:
        os.kill(os.getpid(), 9)
    lwcc.barrier()
"""


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_mpirun_starts_ranks_that_meet_and_one_that_dies_ends_them(
    name: str, request: pytest.FixtureRequest, finish: Any, environment: dict[str, str], tmp_path: Path
) -> None:
    start = [*request.getfixturevalue(name).start, "3", sys.executable]
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    allowed = {k: v for k, v in environment.items() if k.startswith("OMPI_ALLOW")}
    done = finish([*start, str(script)], timeout=60, **allowed)
    assert sorted(done.out.split()) == sorted(["fine", "0", "fine", "1", "fine", "2"]), done.tail()
    done = finish([*start, str(script), "die"], code=None, timeout=60, **allowed)
    assert re.search(r"(?i)rank 1 |EXIT CODE: 9", done.out + done.err), done.tail()


@pytest.mark.engines
@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_mpirun_trains(
    name: str, request: pytest.FixtureRequest, finish: Any, environment: dict[str, str], digits: list[str]
) -> None:
    start = [*request.getfixturevalue(name).start, "2", sys.executable]
    done = finish([*start, *digits], **{k: v for k, v in environment.items() if k.startswith("OMPI_ALLOW")})
    assert "on 2 ranks" in done.out and "reached" in done.out
