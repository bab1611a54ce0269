"""Algorithms in C that are loaded at run time; `lwcc plugin build` makes them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

import pytest

from lwcc import plugins

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "examples" / "my_algorithm.c"
WRONG = """#include "lwcc/plan.h"
static void build(lwcc_plan *p, int me, int size) { lwcc_plan_send(p, (me + 1) % size, me, 1); }
const lwcc_algo lwcc_algo_allreduce_half = {
    .collective = LWCC_ALLREDUCE, .min_ranks = 2, .build = build, .about = "half an algorithm"};
"""

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def lwcc(*argv: str, cwd: Path, code: int = 0) -> str:
    command = [sys.executable, "-m", "lwcc", *argv]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin")
    assert "wrote libmine.so" in lwcc("plugin", "build", str(SOURCE), "-o", "libmine.so", cwd=folder)
    return folder / "libmine.so"


def test_a_plugin_is_listed_proved_and_tried_on_real_data(library: Path) -> None:
    listed = lwcc("algos", "allreduce", "--plugin", "libmine.so", cwd=library.parent)
    assert "my ring: 2(p-1) rounds" in listed
    checked = lwcc("check", "--plugin", "libmine.so", "allreduce=my_ring", "--real", "3", cwd=library.parent)
    assert "right for p = 2-17, 32, 64" in checked
    assert "np = 3 (3 on nodes): right" in checked


def test_a_plugin_runs_in_an_unmodified_script(run_ranks: Callable[..., Any], library: Path) -> None:
    script = """
    for length in (0, 5, 70_000):
        total = lwcc.allreduce(np.full(length, rank + 1.0), op=lwcc.Sum, name=f"x{length}")
        assert (total == 6).all()
    import lwcc.authoring
    print(lwcc.allreduce(np.ones(3), op=lwcc.Sum, name="again", algorithm="my_ring"))
    """
    env = {"LWCC_PLUGIN": str(library), "LWCC_ALGORITHM": "allreduce=my_ring", "LWCC_LOG_LEVEL": "trace"}
    done = run_ranks(3, script, env=env)
    assert done.out.count("[3. 3. 3.]") == 3
    assert done.err.count("exec: allreduce my_ring#") == 9  # nothing to move is no collective


def test_a_wrong_plugin_is_refused_before_it_runs(run_ranks: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "half.c").write_text(WRONG)
    lwcc("plugin", "build", "half.c", cwd=tmp_path)
    refused = lwcc("check", "--plugin", "libhalf.so", "allreduce=half", cwd=tmp_path, code=1)
    assert "rank 1 has no receive for it" in refused
    env = {"LWCC_PLUGIN": str(tmp_path / "libhalf.so"), "LWCC_ALGORITHM": "allreduce=half"}
    done = run_ranks(2, "print('not reached')", env=env, code=1)
    assert "PlanRefused: allreduce of 2 ranks: rank 0, round 0, step 0 (send chunk 0 to rank 1)" in done.err


def test_a_plugin_that_crashes_is_named(tmp_path: Path) -> None:
    (tmp_path / "crash.c").write_text(WRONG.replace("{", "{ *(volatile int *)0 = 1;", 1).replace("half", "crash"))
    lwcc("plugin", "build", "crash.c", cwd=tmp_path)
    said = lwcc("check", "--plugin", "libcrash.so", "allreduce=crash", "--real", "none", cwd=tmp_path, code=1)
    assert "code of libcrash.so crashed (SIGSEGV)" in said


def test_what_is_no_plugin_is_refused_with_its_reason(library: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.c").write_text("int x;\n")
    assert "defines no `const lwcc_algo" in lwcc("plugin", "build", "empty.c", cwd=tmp_path, code=2)
    (tmp_path / "bad.c").write_text(WRONG.replace("int me", "int"))
    failed = lwcc("plugin", "build", "bad.c", cwd=tmp_path, code=2)
    assert "the compiler failed" in failed
    assert "bad.c:2" in failed
    no_compiler = lwcc("plugin", "build", str(SOURCE), "--compiler", "no-such-cc", cwd=tmp_path, code=2)
    assert "cannot run the compiler no-such-cc" in no_compiler
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", str(tmp_path / "libempty.so"), str(tmp_path / "empty.c")], check=True
    )
    assert "it has no symbol lwcc_plugin_v1" in lwcc("algos", "--plugin", "libempty.so", cwd=tmp_path, code=2)
    assert "cannot open shared object" in lwcc("algos", "--plugin", "libnone.so", cwd=tmp_path, code=2)
    shutil.copy(library, tmp_path / "twice.so")
    twice = lwcc("algos", "--plugin", str(library), "--plugin", "twice.so", cwd=tmp_path, code=2)
    assert 'allreduce has an algorithm "my_ring" already' in twice


def test_the_headers_are_found_in_the_package() -> None:
    folder = Path(plugins.include_folder())
    assert (folder / "lwcc" / "plan.h").read_text() == (ROOT / "core/include/lwcc/plan.h").read_text()
    assert os.access(folder, os.R_OK)
