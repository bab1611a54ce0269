"""Algorithms written in Python, run by real ranks: every way in, agreement, and what disagreement looks like."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any, Callable

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "algorithms"
RING = f"{EXAMPLES}/ring.py:ring"
CHECK = """
def check(got, size=size):
    assert (got == expected).all(), got
expected = np.arange(1000, dtype=np.float32) * size + sum(range(size))
x = np.arange(1000, dtype=np.float32) + rank
"""

WAYS = f"""
{CHECK}
from lwcc import authoring
ring = authoring.load({RING!r})
check(lwcc.allreduce(x, op=lwcc.Sum, name="object", algorithm=ring))
check(lwcc.allreduce(x, op=lwcc.Sum, name="text", algorithm={RING!r}))
check(lwcc.allreduce(x, op=lwcc.Sum, name="built in", algorithm="ring"))
check(lwcc.allreduce(x, op=lwcc.Sum, name="entry point", algorithm="from_a_package"))
for out in lwcc.grouped_allreduce([x, x], op=lwcc.Sum, name="group", algorithm=ring):
    check(out)
with lwcc.use(ring):
    check(lwcc.allreduce(x, op=lwcc.Sum))
    check(lwcc.raw.allreduce(x.copy()))
check(lwcc.allreduce(x, op=lwcc.Sum))
lwcc.use("allreduce=circulant")
lwcc.use(None, collective="allreduce")
lwcc.raw.force_algorithm("allreduce", "recursive_doubling")
check(lwcc.raw.allreduce(x.copy()))
lwcc.raw.force_algorithm("allreduce", None)

@lwcc.algorithm("broadcast", chunks=3)
def chain(plan, rank, size):
    for piece in plan.rounds(3):
        if rank:
            plan.recv(rank - 1, piece)
    for piece in plan.rounds(3):
        if rank < size - 1:
            plan.send(rank + 1, piece)
for root in range(size):
    assert (lwcc.broadcast(x, root, name=f"from {{root}}", algorithm=chain) == x - rank + root).all()

@lwcc.algorithm("barrier")
def star(plan, rank, size):
    for other in range(1, size):
        if rank in (0, other):
            (plan.send if rank else plan.recv)(0 if rank else other)
            plan.end_round()
    for other in range(1, size):
        if rank in (0, other):
            (plan.recv if rank else plan.send)(0 if rank else other)
lwcc.barrier(algorithm=star)

two = lwcc.add_process_set([0, size - 1], algorithm=ring)
if two.included():
    assert (lwcc.allreduce(x, op=lwcc.Sum, process_set=two) == x * 2 - 2 * rank + size - 1).all()
    assert (lwcc.raw.allreduce(x.copy(), process_set=two) == x * 2 - 2 * rank + size - 1).all()

@lwcc.algorithm("allreduce", power_of_two=True)
def picky(plan, rank, size):
    ring(plan, rank, size)
if two.included():
    lwcc.allreduce(x, name="picky", process_set=two, algorithm=picky)

def fails(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {{kind.__name__}}")
    check(lwcc.allreduce(x, op=lwcc.Sum, name="after all"))

@lwcc.algorithm("allreduce")
def wrong(plan, rank, size):
    for k in plan.rounds(size - 1):
        plan.send((rank + 1) % size, rank - k)
        plan.recv_reduce((rank - 1) % size, rank - k)

fails(lwcc.Unsupported, "a power of two", lambda: lwcc.allreduce(x, name="p", algorithm=picky))
fails(lwcc.PlanRefused, "script1.py:", lambda: lwcc.allreduce(x, name="w", algorithm=wrong))
fails(ValueError, "for allreduce, not for allgather", lambda: lwcc.allgather(x, name="a", algorithm=ring))
different = ring if rank == 1 else "ring"
disagree = "rank 1: allreduce float32[1000], op Average, algorithm ring#"
fails(lwcc.Mismatch, disagree, lambda: lwcc.allreduce(x, name="m", algorithm=different))

@lwcc.algorithm("allreduce", chunks=2 if rank == 1 else 1)
def own(plan, rank, size):
    plan.run("recursive_doubling", collective="allreduce")
fails(lwcc.Mismatch, "algorithm own#", lambda: lwcc.allreduce(x, name="n", algorithm=own))
fails(lwcc.Mismatch, "rank 1: own#", lambda: lwcc.use(own))
fails(lwcc.Mismatch, "rank 0: none", lambda: lwcc.use(ring if rank else None, collective="allreduce"))
check(lwcc.raw.allreduce(x.copy()))
with lwcc.use(ring):
    lwcc.shutdown()
lwcc.init()
check(lwcc.allreduce(x, op=lwcc.Sum, algorithm=ring))
print("all ways")
"""


def package(folder: Path) -> Path:
    """An installed package that offers an algorithm by an entry point."""
    info = folder / "offering-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offering\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[lwcc.algorithms]\nfrom_a_package = offering:it\n")
    (folder / "offering.py").write_text((EXAMPLES / "circulant.py").read_text() + "\nit = circulant\n")
    return folder


def test_every_way_in_and_what_disagreement_looks_like(run_ranks: Callable[..., Any], tmp_path: Path) -> None:
    done = run_ranks(3, WAYS, env={"PYTHONPATH": str(package(tmp_path)), "LWCC_STALL_ABORT": "20"})
    assert done.out.count("all ways") == 3


def test_an_unmodified_script_runs_with_an_algorithm_from_a_file(run_ranks: Callable[..., Any]) -> None:
    script = f"""
    {textwrap.indent(CHECK, "    ").strip()}
    got = lwcc.allreduce(x, op=lwcc.Sum, name="x")
    check(got)
    one = lwcc.add_process_set([1])
    pair = lwcc.add_process_set([0, 1])
    if rank < 2:
        lwcc.allreduce(x, process_set=pair)
    if rank == 1:
        assert (lwcc.allreduce(x, process_set=one) == x).all()
    check(lwcc.raw.allreduce(x.copy()))
    print("fine")
    """
    env = {"LWCC_ALGORITHM": f"{RING},broadcast=binomial", "LWCC_LOG_LEVEL": "trace"}
    done = run_ranks(4, script, env=env)
    assert done.out.count("fine") == 4
    ran = [line for line in done.err.splitlines() if "exec: allreduce ring#" in line]
    assert len(ran) >= 10


def test_a_set_that_an_algorithm_does_not_serve_goes_on_selecting(
    run_ranks: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "two.py").write_text(
        "import lwcc\nfrom lwcc import authoring\n"
        f"ring = authoring.load({RING!r})\n"
        "@lwcc.algorithm('allreduce', power_of_two=True)\n"
        "def picky(plan, rank, size):\n    ring(plan, rank, size)\n"
    )
    script = """
    three = lwcc.add_process_set([0, 1, 3])
    assert (lwcc.allreduce(np.ones(5), op=lwcc.Sum) == 4).all()
    if three.included():
        assert (lwcc.allreduce(np.ones(5), op=lwcc.Sum, process_set=three) == 3).all()
        assert (lwcc.raw.allreduce(np.ones(5), process_set=three) == 3).all()
    print("fine")
    """
    done = run_ranks(4, script, env={"LWCC_ALGORITHM": f"allreduce={tmp_path}/two.py:picky"})
    assert done.out.count("fine") == 4


def test_a_wrong_choice_ends_init_with_its_reason(run_ranks: Callable[..., Any]) -> None:
    done = run_ranks(2, "print('not reached')", env={"LWCC_ALGORITHM": "allreduce=nonsense"}, code=1)
    assert "allreduce has no algorithm 'nonsense'; known: circulant" in done.err
    assert "not reached" not in done.out


def test_check_tries_real_data(tmp_path: Path) -> None:
    from lwcc import checking

    said: list[str] = []
    assert checking.check(RING, [2, 3], [3], said.append), said
    assert "13 element types, 8 lengths, NaN, same bits in 4 runs and on all ranks" in said[-1]
    right, text = checking.run_real(f"{tmp_path}/none.py:x", "allreduce", 2)
    assert not right
    assert "there is no file" in text
    assert sys.executable
