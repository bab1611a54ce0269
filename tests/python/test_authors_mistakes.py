"""What goes wrong in an author's file is one text with file, line and cause: never a traceback of the library, never a
silent pass."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

import lwcc
from lwcc import authoring, checking
from lwcc.plan import Plan

RIGHT = """
import lwcc
@lwcc.algorithm("allreduce", chunks=1)
def good(plan, rank, size):
    plan.run("recursive_doubling", collective="allreduce")
"""
FILES = {
    "syntax": ("import lwcc\ndef x(plan rank):\n", r"SyntaxError: .*\n  at .*syntax\.py:2: def x\(plan rank\):"),
    "raises": ("import lwcc\n1 / 0\n", r"ZeroDivisionError: division by zero\n  at .*raises\.py:2: 1 / 0"),
    "leaves": ("import sys\nsys.exit(4)\n", r"SystemExit: 4\n  at .*leaves\.py:2"),
    "relative": ("from .good import good\n", r"relative import.*\n.*\n.*plain name, or say package\.module:NAME"),
    "absent": ("import no_such_module_at_all\n", r"No module named 'no_such_module_at_all'\n  at .*absent\.py:1"),
    "bare": ("import lwcc\n@lwcc.algorithm\ndef x(plan, rank, size): pass\n", r'write @lwcc\.algorithm\("allreduce"\)'),
    "yields": ("import lwcc\n@lwcc.algorithm('barrier')\ndef x(plan, rank, size): yield\n", r"without yield and async"),
    "number": ("import lwcc\n@lwcc.algorithm('barrier', min_ranks='2')\ndef x(p, r, s): pass\n", r"min_ranks='2'"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_fails_is_one_text(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from lwcc.__main__ import main

    (tmp_path / f"{name}.py").write_text(FILES[name][0])
    with pytest.raises(ValueError, match=FILES[name][1]):
        authoring.find(f"{tmp_path}/{name}.py:x")
    assert main(["check", f"{tmp_path}/{name}.py:x"]) == 2
    assert "Traceback" not in "".join(capsys.readouterr())


def test_a_file_may_have_neighbours_dataclasses_and_an_odd_name(tmp_path: Path) -> None:
    folder = tmp_path / "a folder = odd"
    folder.mkdir()
    (folder / "neighbour_of_mine.py").write_text(RIGHT)
    text = "from __future__ import annotations\nimport dataclasses\nfrom neighbour_of_mine import good\n"
    (folder / "it's.py").write_text(text + "@dataclasses.dataclass\nclass Hop:\n    peer: int\n")
    assert checking.prove(authoring.find(f"{folder}/it's.py:good"), [2, 3]) == ([2, 3], None)


def refused(build: Any, **asked: Any) -> str:
    """Return what the proof of 2 to 8 ranks says about it."""
    served, refusal = checking.prove(lwcc.algorithm("allreduce", **asked)(build), range(2, 9))
    assert refusal is not None, served
    return refusal.text


def test_mistakes_of_a_function_name_its_line() -> None:
    def half(plan: Plan, rank: int, size: int) -> None:
        plan.send((rank + 1) % size, chunk=rank / 2)  # type: ignore[arg-type]

    def text(plan: Plan, rank: int, size: int) -> None:
        plan.recv("1")  # type: ignore[arg-type]

    def leaves(plan: Plan, rank: int, size: int) -> None:
        raise SystemExit(3)

    def short(plan: Plan) -> None:
        """Take too little."""

    here = r"test_authors_mistakes\.py:\d+"
    assert re.search(here + r".*round 0: send, chunk 0\.0: expected a whole number", refused(half))
    assert re.search(here + r".*recv_copy, peer '1': expected a whole number", refused(text))
    assert re.search(r"leaves: rank 0 of 2: SystemExit: 3\n  at .*" + here, refused(leaves))
    assert re.search(r"takes 1 positional argument but 3 were given\n  at .*" + here, refused(short))
    for chunks, seen in ((lambda size: size // 0, "ZeroDivisionError"), (lambda size: 1.5, "TypeError")):
        assert re.search(rf"short: chunks= for 2 ranks: {seen}.*\n  at .*{here}", refused(short, chunks=chunks))
    assert "chunks= gives 0 for 2 ranks, expected 1 or more" in refused(short, chunks=0)
    assert "expected 1 to 65536" in refused(lambda plan, rank, size: None, chunks=1 << 17)


def test_a_plan_that_is_another_one_when_built_again_is_refused() -> None:
    dice = random.Random(7)

    def shuffled(plan: Plan, rank: int, size: int) -> None:
        order = dice.sample(range(size), size)
        for chunk in order:
            plan.fold(chunk, chunk)

    said = refused(shuffled)
    assert "built a second time, its plan is another one" in said


@lwcc.algorithm("allreduce", chunks=1)
def two_sums(plan: Plan, rank: int, size: int) -> None:
    """Right for up to 4 ranks; then rank 1 adds the terms by itself, from the last to the first."""
    if size < 5:
        return plan.run("recursive_doubling", collective="allreduce")
    if rank < 2:
        plan.send(1 - rank)
        plan.recv_reduce(1 - rank)
        plan.end_round()
        for other in range(2, size) if rank == 0 else range(size - 1, 1, -1):
            plan.recv_reduce(other)
            plan.end_round()
        for other in range(2, size) if rank == 0 else ():
            plan.send(other)
        return None
    plan.send(0)
    plan.send(1)
    plan.end_round()
    return plan.recv_copy(0)


def test_an_allreduce_that_rounds_differently_on_some_rank_is_refused() -> None:
    served, refusal = checking.prove(two_sums, range(2, 9))
    assert refusal is not None
    assert (served, refusal.size) == ([2, 3, 4], 5)
    assert "rank 1 ends with other bits of chunk 0 than rank 0" in refusal.text
    assert re.search(r"last written in round 3 by step 4\n.*test_authors_mistakes\.py:\d+$", refusal.text)


def test_a_barrier_that_somebody_leaves_early_names_both() -> None:
    @lwcc.algorithm("barrier")
    def forgets_the_last(plan: Plan, rank: int, size: int) -> None:
        for k in plan.rounds(min(size, 3) - 1):
            plan.send((rank + k + 1) % size)
            plan.recv((rank - k - 1) % size)

    refusal = checking.prove(forgets_the_last, [9])[1]
    assert refusal is not None
    assert re.search(r"rank 0 leaves, after round 1, step 3 .*, before rank 1 has come", refusal.text), refusal.text
    assert re.search(r"test_authors_mistakes\.py:\d+$", refusal.text)


def test_a_part_from_c_is_blamed_on_the_line_that_runs_it_and_the_hint_has_the_nodes() -> None:
    said: list[str] = []

    @lwcc.algorithm("allreduce", chunks=1)
    def equal_nodes_only(plan: Plan, rank: int, size: int) -> None:
        plan.run("recursive_doubling", plan.local_ranks(), collective="allreduce")
        peers = [r for r in range(size) if plan.local_index(r) == plan.local_index()]
        plan.run("recursive_doubling", peers, collective="allreduce")

    assert not checking.check("allreduce=equal_nodes_only", [2, 3], [], said.append)
    assert re.search(r"that step was written by .*test_authors_mistakes\.py:\d+\n", said[-2] + "\n")
    assert said[-1] == "to see it: lwcc plan allreduce=equal_nodes_only -p 3 --nodes 0,0,1"
    said.clear()

    @lwcc.algorithm("allreduce", chunks=1, min_ranks=7)
    def seven(plan: Plan, rank: int, size: int) -> None:
        plan.run("recursive_doubling", collective="allreduce")

    assert checking.check("seven", [7, 8], [2, 3], said.append)
    assert "real data  NOT TRIED: it serves none of np = 2-3" in said[-1]


def test_a_round_that_breaks_ends() -> None:
    plan = Plan("allreduce", 0, 3, 3)
    for _ in plan.rounds(5):
        plan.send(1)
        break
    plan.recv(1)
    plan.end_round()
    assert plan.ends == [1, 2]
