"""The text pictures of the shipped algorithms for 3 and 4 ranks, so that a change of a plan is seen as a diff.

`LWCC_UPDATE_GOLDEN=1 pytest tests/plan/test_golden.py` writes golden/<collective>_<name>.txt anew. An algorithm
without a picture is not an error: a new algorithm needs one file and no test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
GOLDEN = HERE / "golden"
SIZES = ("3", "4")
NAMES = sorted(p.stem for p in GOLDEN.glob("*.txt"))
PURE = ("plan", "algo", "os/status.c", "api/plans.c")  # plans need nothing else of the core


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Map "<collective>_<name>" to the pictures of all its ranks at SIZES."""
    out = tmp_path_factory.mktemp("golden")
    subprocess.run([sys.executable, str(ROOT / "core" / "gen_tables.py"), str(out)], check=True, timeout=60)
    sources = [str(HERE / "print_plans.c"), str(out / "algo_table.c")]
    for part in PURE:
        path = ROOT / "core" / "src" / part
        sources += [str(path)] if path.suffix else sorted(str(p) for p in path.glob("*.c"))
    compiler = os.environ.get("CC", "gcc")
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-I", str(ROOT / "core/include"), "-I", str(ROOT / "core/src")]
    program = str(out / "print_plans")
    subprocess.run([compiler, *flags, "-o", program, *sources], check=True, timeout=120)
    printed = subprocess.run([program, *SIZES], check=True, timeout=60, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, str] = {}
    for part in printed.split("== ")[1:]:
        title, text = part.split("\n", 1)
        found[title.split()[0]] = found.get(title.split()[0], "") + f"== {title}\n{text}"
    if os.environ.get("LWCC_UPDATE_GOLDEN") == "1":
        for name, text in found.items():
            (GOLDEN / f"{name}.txt").write_text(text, encoding="utf-8")
    return found


def test_pictures_are_kept(pictures: dict[str, str]) -> None:
    assert len(NAMES) >= 14
    assert set(NAMES) <= set(pictures), "a picture without an algorithm"


@pytest.mark.parametrize("name", NAMES)
def test_plan_is_as_in_its_picture(pictures: dict[str, str], name: str) -> None:
    assert pictures.get(name) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
