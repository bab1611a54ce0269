from __future__ import annotations

import re
from pathlib import Path

import pytest

import lwcc
from lwcc import authoring, checking, proof
from lwcc.plan import COPY, Plan, Step, Topology

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "algorithms"
NAMES = ("ring", "circulant", "recursive_doubling", "swing", "hierarchical", "double_binary_tree")
LINES = 25


def example(name: str) -> lwcc.Algorithm:
    return authoring.load(f"{EXAMPLES / name}.py:{name}")


def fresh(collective: str = "allreduce", rank: int = 1, size: int = 4, chunks: int = 4) -> Plan:
    return Plan(collective, rank, size, chunks)


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_are_proved_for_all_sizes(name: str) -> None:
    served, refusal = checking.prove(example(name), checking.SIZES)
    assert refusal is None
    assert served == list(checking.SIZES)


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_are_short(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    body = text[text.index(f"def {name}(") :]
    assert len([line for line in body.splitlines() if line.strip()]) <= LINES


@pytest.mark.parametrize("size", [2, 3, 8, 13])
@pytest.mark.parametrize("name", ["ring", "circulant"])
def test_a_python_plan_is_byte_by_byte_its_twin_in_c(name: str, size: int) -> None:
    twin = authoring.BuiltIn("allreduce", name)
    for mine, theirs in zip(example(name).plans(size), twin.plans(size)):
        assert mine.encode() == theirs.encode()
        assert Plan.decode(mine.encode()).steps == mine.steps


def test_chunks_wrap_and_a_range_over_the_end_is_two_messages() -> None:
    plan = fresh()
    plan.send(0, chunk=-2, count=3)
    plan.recv_reduce(2, chunk=5)
    plan.recv(3, chunk=1)
    plan.copy(5, -3)
    assert plan.steps == [
        Step(0, 0, 2, 2),
        Step(0, 0, 0, 1),
        Step(2, 2, 1, 1),
        Step(1, 3, 1, 1),
        Step(COPY, 0, 1, 1, 1),
    ]


def test_rounds_end_rounds_and_empty_ones_are_none() -> None:
    plan = fresh()
    for k in plan.rounds(3):
        if k != 1:
            plan.send(0, k)
    plan.end_round()
    assert plan.ends == [1, 2]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda p: p.send(4), "peer 4, chunk 0: others are ranks 0 to 3 without 1"),
        (lambda p: p.recv_copy(1), "recv_copy, peer 1"),
        (lambda p: p.recv_reduce(-1), "recv_reduce, peer -1"),
        (lambda p: p.send(0, 0, 5), "5 chunks of 4"),
        (lambda p: p.send(0, 0, 0), "0 chunks of 4"),
        (lambda p: p.fold(0, 4), "fold of chunk 0 on rank 4"),
    ],
)
def test_a_wrong_argument_names_file_line_rank_and_round(call: object, text: str) -> None:
    with pytest.raises(lwcc.PlanRefused, match=re.escape(text)) as caught:
        call(fresh())  # type: ignore[operator]
    assert re.match(rf"{re.escape(__file__)}:\d+: allreduce, rank 1 of 4, round 0: ", str(caught.value))


def test_requirements_are_unsupported_not_wrong() -> None:
    @lwcc.algorithm("barrier", min_ranks=4, power_of_two=True, min_ranks_per_node=2)
    def picky(plan: Plan, rank: int, size: int) -> None:
        plan.require(size != 8, "another number than 8")
        for bit in plan.rounds(size.bit_length() - 1):
            plan.send(rank ^ 1 << bit)
            plan.recv(rank ^ 1 << bit)

    pairs = [Topology([r // 2 for r in range(p)]) for p in (2, 6, 4, 8, 16)]
    for place, text in zip(pairs, ("at least 4 ranks", "a power of two", "", "another number than 8", "")):
        if not text:
            proof.prove(picky.plans(len(place.node_of), place))
            continue
        with pytest.raises(lwcc.Unsupported, match=text):
            picky.plans(len(place.node_of), place)
    with pytest.raises(lwcc.Unsupported, match="at least 2 ranks on each node"):
        picky.plans(4, Topology([0, 0, 0, 1]))
    assert picky.needs.text() == "p >= 4, p = 2^k, 2 or more ranks per node"


def test_algorithms_compose_by_calls_and_by_run() -> None:
    @lwcc.algorithm("reducescatter")
    def down(plan: Plan, rank: int, size: int) -> None:
        for k in plan.rounds(size - 1):
            plan.send((rank + 1) % size, rank - k - 1)
            plan.recv_reduce((rank - 1) % size, rank - k - 2)

    @lwcc.algorithm("allgather")
    def up(plan: Plan, rank: int, size: int) -> None:
        for k in plan.rounds(size - 1):
            plan.send((rank + 1) % size, rank - k)
            plan.recv((rank - 1) % size, rank - k - 1)

    @lwcc.algorithm("allreduce")
    def by_calls(plan: Plan, rank: int, size: int) -> None:
        down(plan, rank, size)
        up(plan, rank, size)

    @lwcc.algorithm("allreduce", chunks=lambda size: 3 * size)
    def by_run(plan: Plan, rank: int, size: int) -> None:
        plan.run(down)
        plan.run("bruck", collective="allgather")

    for size in range(2, 8):
        for algorithm in (down, up, by_calls, by_run):
            assert proof.prove(algorithm.plans(size), "", algorithm).rounds > 0


def test_run_refuses_chunks_that_do_not_divide() -> None:
    @lwcc.algorithm("allreduce", chunks=3)
    def odd(plan: Plan, rank: int, size: int) -> None:
        plan.run("ring", collective="allreduce")

    with pytest.raises(lwcc.PlanRefused, match="do not divide 3 chunks"):
        odd.plans(2)


def test_topology_numbers_nodes_by_their_lowest_rank() -> None:
    place = Topology([7, 3, 7, 3, 5])
    assert place.node_of == (0, 1, 0, 1, 2)
    assert place.members(1) == [1, 3]
    assert place.shape() == "2+2+1"
    plan = Plan("allreduce", 3, 5, 5, place)
    assert not place.asked
    assert (plan.node(), plan.local_index(), plan.local_ranks(2), plan.local_index(2)) == (1, 1, [0, 2], 1)
    assert place.asked


def test_finding_says_what_there_is(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import lwcc\n@lwcc.algorithm('allreduce')\ndef good(plan, rank, size): pass\nother = 1\n")
    assert authoring.find(f"{file}:good") is authoring.find(f"allreduce={file}:good")
    assert authoring.find("good", "allreduce") is authoring.load(f"{file}:good")
    assert authoring.find("allgather=bruck").name == "bruck"
    for wrong, text in (
        (f"{file}:other", "it has: good"),
        (f"{tmp_path}/none.py:x", "there is no file"),
        ("no_such_package.x:y", "cannot import"),
        ("allreduce=nonsense", "known: circulant"),
        ("nonsense", "lwcc algos"),
        ("ring", "serves allreduce, allgather, reducescatter: say for which"),
        (f"allgather={file}:good", "for allreduce, not for allgather"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            authoring.find(wrong)


def test_a_decorator_checks_its_arguments() -> None:
    with pytest.raises(ValueError, match="known: allreduce"):
        lwcc.algorithm("allsum")(lambda plan, rank, size: None)
    with pytest.raises(ValueError, match="leave out chunks"):
        lwcc.algorithm("alltoall", chunks=2)(lambda plan, rank, size: None)


def test_a_refusal_names_the_line_that_wrote_the_step(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    text = (EXAMPLES / "ring.py").read_text(encoding="utf-8").replace("recv_copy", "recv_reduce")
    file.write_text(text, encoding="utf-8")
    said: list[str] = []
    assert not checking.check(f"{file}:ring", [5, 9], [], said.append)
    report = "\n".join(said)
    assert "the fewest ranks that fail are 2" in report
    assert "rank 0 ends with rank 0's term more than once of chunk 0, expected once" in report
    assert "it holds the terms of ranks 0* 1 (* more than once)" in report
    line = text.splitlines().index("        plan.recv_reduce(before, chunk=rank - k)") + 1
    assert re.search(rf"wrong\.py:{line}$", report, re.M)


def test_a_loop_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    @lwcc.algorithm("allreduce")
    def sends_for_ever(plan: Plan, rank: int, size: int) -> None:
        while True:
            plan.send((rank + 1) % size)

    @lwcc.algorithm("allreduce")
    def halves_nothing(plan: Plan, rank: int, size: int) -> None:
        distance = size
        while distance > 1:
            rank ^= distance

    monkeypatch.setattr("lwcc.plan.STEPS_LIMIT", 1000)
    with pytest.raises(lwcc.PlanRefused, match=r"test_authoring\.py:\d+.*more than 1000 steps"):
        sends_for_ever.plans(2)
    monkeypatch.setattr("lwcc.authoring._PATIENCE_S", 0.05)
    with pytest.raises(lwcc.PlanRefused, match=r"(?s)halves_nothing: rank 0 of 4: .*a loop.*test_authoring\.py:\d+"):
        halves_nothing.plans(4)
