"""docs/write-your-own-allreduce.md: its files are written, its commands run, its outputs compared. `...` in an output
stands for anything. docs/algorithms.md and its pages are what `lwcc algos --write` writes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lwcc import catalogue

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TUTORIAL = DOCS / "write-your-own-allreduce.md"
TRAIN = """
import numpy as np
import lwcc
lwcc.init()
weights = np.zeros(1000)
for step in range(5):
    gradients = lwcc.allreduce(weights - lwcc.rank(), name="gradients")
    weights -= 0.5 * gradients
assert abs(weights - (lwcc.size() - 1) / 2).max() < 0.05 * lwcc.size()
"""


def blocks(kind: str) -> Iterator[str]:
    text = TUTORIAL.read_text(encoding="utf-8")
    yield from (m[1] for m in re.finditer(rf"^```{kind}\n(.*?)^```$", text, re.M | re.S))


def commands() -> Iterator[tuple[str, str]]:
    """Yield (command, output) of every console block."""
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the reader has made when the first command comes."""
    named = {re.search(r"def (\w+)|import (time)", b): b for b in blocks("python")}
    files = {"my_ring": "mine.py", "time": "compare.py"}
    for match, text in named.items():
        name = files.get((match[1] or match[2]) if match else "")
        if name:
            (tmp_path / name).write_text(text, encoding="utf-8")
    assert (tmp_path / "mine.py").exists() and (tmp_path / "compare.py").exists()
    wrong = (tmp_path / "mine.py").read_text(encoding="utf-8").replace("recv_copy", "recv_reduce")
    (tmp_path / "wrong.py").write_text(wrong, encoding="utf-8")
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    shutil.copy(ROOT / "examples" / "my_algorithm.c", tmp_path)
    return tmp_path


def matches(output: str, expected: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("..."))
    return re.fullmatch(pattern, output.strip(), re.S) is not None


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_every_command_of_the_tutorial_does_what_it_says(folder: Path) -> None:
    bin_folder = os.path.dirname(sys.executable)
    env = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    count = 0
    for command, expected in commands():
        words = command.split()
        tool = [sys.executable, "-m", {"lwcc": "lwcc", "lwccrun": "lwcc.launcher"}[words[0]]]
        done = subprocess.run([*tool, *words[1:]], cwd=folder, env=env, capture_output=True, text=True, timeout=120)
        said = f"$ {command}\n{done.stdout}{done.stderr}"
        assert done.returncode == ("wrong.py" in command and "check" in command), said
        assert matches(done.stdout, expected), said
        count += 1
    assert count >= 9


def test_the_pages_of_the_algorithms_are_current() -> None:
    """An algorithm without a page is no error: a new one needs one file, and gets its page by the command."""
    made = catalogue.pages()
    there = {"algorithms.md", *(f"algorithms/{p.name}" for p in (DOCS / "algorithms").glob("*.md"))}
    assert len(there) >= 15
    assert there <= set(made), "a page without an algorithm"
    new = set(made) - there
    kept = [line for line in made["algorithms.md"].splitlines() if not any(name in line for name in new)]
    made["algorithms.md"] = "\n".join([*kept, ""])
    stale = [name for name in there if (DOCS / name).read_text(encoding="utf-8") != made[name]]
    assert not stale, f"write them anew: lwcc algos --write docs (stale: {', '.join(stale)})"


def test_files_that_the_documents_name_exist() -> None:
    for document in (TUTORIAL, DOCS / "algorithms.md"):
        text = document.read_text(encoding="utf-8")
        named = re.findall(r"`((?:examples|benchmarks|core|tests)/[\w/.]+)`", text)
        linked = [str((document.parent / target).resolve()) for target in re.findall(r"\]\(([^):]+)\)", text)]
        missing = [name for name in named if not (ROOT / name).exists()] + [p for p in linked if not Path(p).exists()]
        assert not missing
