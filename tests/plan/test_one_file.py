"""Adding an algorithm changes one file: proved on a copy of the tree, in C and in Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from lwcc import authoring, checking

ROOT = Path(__file__).resolve().parents[2]
PURE = ("plan", "algo", "os/status.c", "api/plans.c")  # plans need nothing else of the core
NEW = """/* A star: rank 0 sums everything and hands it out. */
#include "lwcc/plan.h"

static void build(lwcc_plan *p, int me, int size) {
  for (int r = 1; r < size; r++) {
    if (me == 0) lwcc_plan_recv_reduce(p, r, 0, size);
    if (me == r) lwcc_plan_send(p, 0, 0, size);
    lwcc_plan_end_round(p);
  }
  for (int r = 1; r < size; r++) {
    if (me == 0) lwcc_plan_send(p, r, 0, size);
    if (me == r) lwcc_plan_recv_copy(p, 0, 0, size);
  }
}

const lwcc_algo lwcc_algo_allreduce_star = {
    .collective = LWCC_ALLREDUCE, .min_ranks = 2, .build = build, .about = "star: all through rank 0"};
"""
MINE = """import lwcc
@lwcc.algorithm("allreduce", chunks=1)
def star(plan, rank, size):
    for other in range(1, size):
        if rank in (0, other):
            (plan.send if rank else plan.recv_reduce)(0 if rank else other)
            plan.end_round()
    for other in range(1, size):
        if rank in (0, other):
            (plan.recv if rank else plan.send)(0 if rank else other)
"""


def run(command: list[str], cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def compiled(tree: Path, source: str) -> str:
    """Build a C test of the copy with the pure part of its core, as the suite does."""
    run([sys.executable, "core/gen_tables.py", "gen"], tree)
    sources = [source, "gen/algo_table.c"]
    for part in PURE:
        path = tree / "core" / "src" / part
        sources += [str(path)] if path.suffix else sorted(str(p) for p in path.glob("*.c"))
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror"]
    flags += ["-Icore/include", "-Icore/src", "-Itests/c"]
    run([os.environ.get("CC", "gcc"), *flags, "-o", "program", *sources], tree)
    return str(tree / "program")


def test_a_new_c_file_is_found_proved_run_on_data_and_listed(tmp_path: Path) -> None:
    for folder in ("core/src", "core/include", "tests/c", "tests/plan"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "core/gen_tables.py", tmp_path / "core")
    (tmp_path / "core/src/algo/allreduce_star.c").write_text(NEW)
    checked = run([compiled(tmp_path, "tests/c/test_algorithms.c")], tmp_path)
    assert " 0 failed" in checked
    pictures = run([compiled(tmp_path, "tests/plan/print_plans.c"), "3"], tmp_path)
    assert "== allreduce_star 3" in pictures
    wrong = NEW.replace("lwcc_plan_recv_copy", "lwcc_plan_recv_reduce")
    (tmp_path / "core/src/algo/allreduce_star.c").write_text(wrong)
    program = compiled(tmp_path, "tests/c/test_algorithms.c")
    failed = subprocess.run([program], capture_output=True, text=True, timeout=120, check=False)
    assert failed.returncode != 0
    assert "star" in failed.stdout + failed.stderr


def test_a_new_python_file_is_all_that_a_new_algorithm_needs(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    served, refusal = checking.prove(authoring.load(f"{tmp_path}/mine.py:star"), range(2, 18))
    assert refusal is None
    assert served == list(range(2, 18))
