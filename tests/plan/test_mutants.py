"""How sharp is `lwcc check`? Seeded faults are put into the source of the examples. Whether one matters is judged by an
interpreter that shares nothing with the proof: it moves real numbers by the rules of plan.h. Every fault that matters
must be refused, and nothing else."""

from __future__ import annotations

import ast
import copy
import random
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import pytest

from lwcc import authoring, checking
from lwcc.errors import PlanRefused, Unsupported
from lwcc.plan import RECV_COPY, RECV_REDUCE, SEND, Plan, Topology

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "algorithms"
NAMES = ("ring", "circulant", "recursive_doubling", "swing", "hierarchical", "double_binary_tree")
SEED, WANTED, SIZES, WIDE = 20261130, 100, range(2, 9), 1 << 64
CPU_LIMIT_S = 0.4  # of one mutant; those that end take a tenth
VERBS = {"recv_reduce": "recv_copy", "recv_copy": "recv_reduce", "send": "recv_copy"}


# ---- faults ----


def faults(tree: ast.Module) -> Iterator[ast.Module]:
    """Yield copies of a module with one fault each."""
    for i, node in enumerate(ast.walk(tree)):
        for change in changes(node):
            mutant = copy.deepcopy(tree)
            change(next(n for k, n in enumerate(ast.walk(mutant)) if k == i))
            yield ast.fix_missing_locations(mutant)


def changes(node: ast.AST) -> list[Any]:
    """Return functions that put a fault into such a node."""
    found: list[Any] = []
    if isinstance(node, ast.Constant) and type(node.value) is int:
        found += [lambda n, by=by: setattr(n, "value", n.value + by) for by in (1, -1, 2)]
    if isinstance(node, ast.BinOp):
        other = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv}
        if type(node.op) in other:
            found.append(lambda n: setattr(n, "op", other[type(n.op)]()))
        found.append(lambda n: n.__dict__.update(left=n.right, right=n.left))
    if isinstance(node, ast.Compare):
        found += [lambda n, op=op: setattr(n, "ops", [op()]) for op in (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.NotEq)]
    if isinstance(node, ast.Attribute) and node.attr in VERBS:
        found.append(lambda n: setattr(n, "attr", VERBS[n.attr]))
    if isinstance(node, ast.Call) and len(node.args) > 1:
        found.append(lambda n: setattr(n, "args", n.args[::-1]))
    if isinstance(node, ast.Name) and node.id in ("rank", "size", "after", "before", "mine", "theirs", "k", "hop"):
        swap = {
            "after": "before",
            "before": "after",
            "mine": "theirs",
            "theirs": "mine",
            "rank": "size",
            "size": "rank",
        }
        found.append(lambda n: setattr(n, "id", swap.get(n.id, "rank")))
    body = getattr(node, "body", None)
    if isinstance(body, list) and isinstance(node, (ast.For, ast.If, ast.FunctionDef)):
        for i in range(len(body)):
            found.append(lambda n, i=i: n.body.__setitem__(i, ast.Pass()))
            found.append(lambda n, i=i: n.body.insert(i, copy.deepcopy(n.body[i])))
            if i:
                found.append(lambda n, i=i: n.body.__setitem__(slice(i - 1, i + 1), n.body[i - 1 : i + 1][::-1]))
    return found


def load(tree: ast.Module, name: str) -> Optional[authoring.Algorithm]:
    """Run a mutant's file; None if that fails at once."""
    space: dict[str, Any] = {}
    try:
        exec(compile(tree, f"{name}.py", "exec"), space)
    except Exception:
        return None
    made = space.get(name)
    return made if isinstance(made, authoring.Algorithm) else None


# ---- the judge ----


def partners(plans: Sequence[Plan]) -> Optional[dict[tuple[int, int], tuple[int, int]]]:
    """Tie the i-th send of a pair to its i-th receive; None if they do not fit."""
    ends: dict[tuple[int, int, bool], list[int]] = {}
    for plan in plans:
        for i, step in enumerate(plan.steps):
            if step.kind in (SEND, RECV_COPY, RECV_REDUCE):
                sends = step.kind == SEND
                pair = (plan.rank, step.peer) if sends else (step.peer, plan.rank)
                ends.setdefault((*pair, sends), []).append(i)
    tied = {}
    for a, b, _ in list(ends):
        out, into = ends.get((a, b, True), []), ends.get((a, b, False), [])
        if len(out) != len(into):
            return None
        for i, j in zip(out, into):
            if plans[a].steps[i][2:4] != plans[b].steps[j][2:4]:
                return None
            tied[a, i], tied[b, j] = (b, j), (a, i)
    return tied


class Term(NamedTuple):
    """A number, and the tree of additions that it is the sum of."""

    value: int
    tree: int


def add(a: Term, b: Term) -> Term:
    """Add as floats do: a+b is b+a, but (a+b)+c need not be a+(b+c)."""
    return Term((a.value + b.value) % WIDE, hash((min(a.tree, b.tree), max(a.tree, b.tree))))


class World:
    """All ranks side by side; a message passes when both ends are in their rounds, and takes what was there then."""

    def __init__(self, plans: Sequence[Plan], tied: dict[tuple[int, int], tuple[int, int]]) -> None:
        dice = random.Random(len(plans))
        self.plans, self.tied = plans, tied
        self.data = [[Term(dice.randrange(WIDE), plan.rank) for _ in range(plan.chunks)] for plan in plans]
        self.wanted = [sum(term.value for term in column) % WIDE for column in zip(*self.data)]
        self.place = [0] * len(plans)
        self.came: dict[tuple[int, int], list[Term]] = {}

    def steps_of(self, rank: int) -> range:
        number, ends = self.place[rank], self.plans[rank].ends
        return range(ends[number - 1] if number else 0, ends[number]) if number < len(ends) else range(0)

    def pass_messages(self) -> None:
        now = {(rank, i) for rank in range(len(self.plans)) for i in self.steps_of(rank)}
        for rank, i in now - set(self.came):
            step = self.plans[rank].steps[i]
            if step.kind == SEND and self.tied[rank, i] in now:
                sent = self.data[rank][step.chunk : step.chunk + step.n]
                self.came[rank, i] = self.came[self.tied[rank, i]] = sent

    def end_round(self, rank: int) -> bool:
        """Apply what came; False if a chunk is written twice."""
        written: set[int] = set()
        for i in self.steps_of(rank):
            step = self.plans[rank].steps[i]
            chunks = range(step.chunk, step.chunk + step.n) if step.kind != SEND else ()
            for c, value in zip(chunks, self.came[rank, i]):
                if c in written:
                    return False
                written.add(c)
                self.data[rank][c] = value if step.kind == RECV_COPY else add(self.data[rank][c], value)
        self.place[rank] += 1
        return True

    def run(self) -> bool:
        while True:
            self.pass_messages()
            ready = [r for r in range(len(self.plans)) if self.steps_of(r)]
            ready = [r for r in ready if all((r, i) in self.came for i in self.steps_of(r))]
            if not ready:
                break
            if sum(self.end_round(rank) for rank in ready) < len(ready):
                return False
        ended = all(not self.steps_of(r) for r in range(len(self.plans)))
        return ended and all(d == self.data[0] and [t.value for t in d] == self.wanted for d in self.data)


def right(plans: Sequence[Plan]) -> bool:
    """Move numbers: does every chunk end as the sum of all ranks' terms, by the rules, without a standstill, and with
    the same bits on all ranks?"""
    tied = partners(plans)
    return tied is not None and World(plans, tied).run()


def judged(algorithm: authoring.Algorithm) -> Optional[bool]:
    """Return whether a mutant is right for all SIZES and placements that it serves; None: it serves none."""
    served = False
    for size in SIZES:
        for place in checking.topologies(size):
            place = Topology(place.node_of)
            try:
                plans = algorithm.plans(size, place)
            except Unsupported:
                continue
            except (PlanRefused, ValueError):
                return False
            served = True
            if not right(plans):
                return False
            if not place.asked:
                break
    return True if served else None


@pytest.fixture
def limit() -> Iterator[None]:
    """Have a mutant that never ends interrupted."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGVTALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


def verdicts(algorithm: authoring.Algorithm) -> Optional[tuple[Optional[bool], bool]]:
    """Return (the judge's, check's); None: the mutant does not end."""
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_LIMIT_S)
    try:
        truth = judged(algorithm)
        try:
            served, refusal = checking.prove(algorithm, SIZES)
        except ValueError:
            return truth, False
        return truth, refusal is None and bool(served)
    except KeyboardInterrupt:
        return None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def study(name: str) -> tuple[int, int]:
    """Return how many mutants of a file were tried, and how many of these are wrong."""
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    original = load(ast.parse(text), name)
    assert original is not None
    assert verdicts(original) == (True, True)
    mutants = list(faults(ast.parse(text)))
    random.Random(SEED).shuffle(mutants)
    tried = harmful = 0
    for mutant in mutants:
        algorithm = load(mutant, name)
        seen = verdicts(algorithm) if algorithm is not None else None
        if seen is None:
            continue
        tried += 1
        harmful += not seen[0]
        assert seen[1] == bool(seen[0]), f"judge {seen[0]}, check {seen[1]} (seed {SEED}):\n{ast.unparse(mutant)}"
        if tried == WANTED:
            break
    print(f"{name}: {tried} mutants, {harmful} wrong: all of these refused, and no other")
    return tried, harmful


def test_check_finds_every_fault_of_500_mutants_and_has_no_false_alarm(limit: None) -> None:
    counts = [study(name) for name in NAMES]
    assert sum(tried for tried, _ in counts) >= 500
    assert all(40 <= tried < 2 * harmful for tried, harmful in counts)
