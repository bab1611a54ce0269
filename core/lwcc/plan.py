"""What an algorithm writes: one rank's plan, by the verbs of plan.h, and the facts that it may ask for.

A plan is steps over chunks, in rounds. The buffer is cut into `plan.chunks` parts of nearly equal length (allgather,
reducescatter, alltoall: part i is the block of rank i). Within a round all steps run side by side: a send reads what
its chunk held when the round began. The i-th send from a to b belongs to the i-th receive of b from a, and both name
the same chunks. Rounds are this rank's own; they do not synchronise the ranks. `lwcc.check` proves that a plan does
what its collective promises (core/include/lwcc/plan.h has the promises).
"""

from __future__ import annotations

import functools
import operator
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Optional, Union

from lwcc.errors import PlanRefused, Unsupported

if TYPE_CHECKING:
    from lwcc.authoring import Algorithm

COLLECTIVES = ("allreduce", "broadcast", "allgather", "reducescatter", "alltoall", "barrier")
BLOCKS = ("allgather", "reducescatter", "alltoall")  # chunk i is rank i's block
SEND, RECV_COPY, RECV_REDUCE, COPY, REDUCE, FOLD = range(6)
KINDS = ("send", "recv_copy", "recv_reduce", "copy", "reduce", "fold")
STEPS_LIMIT = 1 << 20  # of one rank
_MAGIC, _VERSION, _HEADER = 0x4C50574C, 1, struct.Struct("<8i")


class Step(NamedTuple):
    """One step, as plan/ir.h has it: `peer` (fold: the owner), first chunk (copy, reduce: the destination), how
    many chunks."""

    kind: int
    peer: int
    chunk: int
    n: int
    source: int = 0


class Topology:
    """Which ranks share a node.

    Attributes:
        node_of: index of each rank's node; nodes are numbered by their lowest rank.
        nodes: how many there are.
        asked: whether an algorithm has looked at it, so that its plans depend on it.
    """

    def __init__(self, labels: Sequence[int]) -> None:
        numbers: dict[int, int] = {}
        self.node_of = tuple(numbers.setdefault(label, len(numbers)) for label in labels)
        self.nodes = len(numbers)
        self.asked = False
        self._members: list[list[int]] = [[] for _ in numbers]
        for rank, node in enumerate(self.node_of):
            self._members[node].append(rank)

    def members(self, node: int) -> list[int]:
        """Return the ranks of a node, ascending."""
        return self._members[node]

    def shape(self) -> str:
        """Return how many ranks each node has, as "2+2"."""
        return "+".join(str(len(self.members(node))) for node in range(self.nodes))


@functools.lru_cache(maxsize=4)
def _one_node(size: int) -> Topology:
    return Topology([0] * size)


class Plan:
    """One rank's steps in the making.

    Attributes:
        collective: its name.
        rank, size: whose plan it is, of how many ranks.
        chunks: parts that the buffer is cut into. A chunk number counts modulo this, so `rank - 1` needs no care.
    """

    def __init__(self, collective: str, rank: int, size: int, chunks: int, topology: Optional[Topology] = None) -> None:
        self.collective, self.rank, self.size, self.chunks = collective, rank, size, chunks
        self.steps: list[Step] = []
        self.ends: list[int] = []  # index after the last step of each round
        self.where: list[tuple[str, int]] = []  # file and line that wrote each step
        self._topology = topology or _one_node(size)

    # ---- messages ----

    def send(self, peer: int, chunk: int = 0, count: int = 1) -> None:
        """Send chunks `chunk`, `chunk + 1`, ... (`count` of them) to `peer`, as they were when the round began."""
        self._message(SEND, peer, chunk, count)

    def recv_copy(self, peer: int, chunk: int = 0, count: int = 1) -> None:
        """Receive chunks from `peer` and put them in the place of mine."""
        self._message(RECV_COPY, peer, chunk, count)

    recv = recv_copy

    def recv_reduce(self, peer: int, chunk: int = 0, count: int = 1) -> None:
        """Receive chunks from `peer` and reduce them into mine."""
        self._message(RECV_REDUCE, peer, chunk, count)

    # ---- within a rank, and over shared memory ----

    def copy(self, target: int, source: int) -> None:
        """Copy a chunk. Chunks may differ in length, so that only alltoall's own block, `copy(rank, rank)`, passes."""
        target, source = self._whole("copy, chunk", target), self._whole("copy, chunk", source)
        self._add(Step(COPY, 0, target % self.chunks, 1, source % self.chunks))

    def reduce(self, target: int, source: int) -> None:
        """Reduce a chunk into another; see `copy`."""
        target, source = self._whole("reduce, chunk", target), self._whole("reduce, chunk", source)
        self._add(Step(REDUCE, 0, target % self.chunks, 1, source % self.chunks))

    def fold(self, chunk: int, owner: int) -> None:
        """Reduce a chunk over all ranks and leave it on all (allreduce only); every rank lists the same folds."""
        chunk, owner = self._whole("fold, chunk", chunk), self._whole("fold, owner", owner)
        if not 0 <= owner < self.size:
            self._refuse(f"fold of chunk {chunk} on rank {owner}: there are ranks 0 to {self.size - 1}")
        self._add(Step(FOLD, owner, chunk % self.chunks, 1))

    # ---- rounds ----

    def end_round(self) -> None:
        """End the round. One without steps is none."""
        if len(self.steps) > (self.ends[-1] if self.ends else 0):
            self.ends.append(len(self.steps))

    def rounds(self, count: int) -> Iterator[int]:
        """Iterate over range(count); each turn is a round, also one that breaks."""
        for k in range(count):
            try:
                yield k
            finally:
                self.end_round()

    # ---- facts ----

    @property
    def topology(self) -> Topology:
        """Which ranks share a node."""
        self._topology.asked = True
        return self._topology

    def node(self, rank: Optional[int] = None) -> int:
        """Return the index of a rank's node, default mine."""
        return self.topology.node_of[self.rank if rank is None else rank]

    def local_ranks(self, rank: Optional[int] = None) -> list[int]:
        """Return the ranks on a rank's node, default mine, ascending."""
        return self.topology.members(self.node(rank))

    def local_index(self, rank: Optional[int] = None) -> int:
        """Return a rank's place on its node, default mine."""
        return self.local_ranks(rank).index(self.rank if rank is None else rank)

    def require(self, condition: object, text: str) -> None:
        """Give up, in good order, where the algorithm does not serve these ranks; `text` says what it needs."""
        if not condition:
            raise Unsupported(f"{self.collective} of {self.size} ranks: this algorithm needs {text}")

    # ---- composition ----

    def run(
        self, algorithm: Union[Algorithm, str], ranks: Optional[Sequence[int]] = None,
        chunks: Optional[tuple[int, int]] = None, *, collective: str = "",
    ) -> None:  # fmt: skip
        """Append what another algorithm does among some ranks on some chunks; ranks that are not named do nothing.

        Args:
            algorithm: an `@lwcc.algorithm`, or the name of a built-in one (with `collective`).
            ranks: who takes part, in its order of ranks: its rank 0 is `ranks[0]`. Default: all.
            chunks: (first, count) that it works on, in as many equal parts as it has chunks. Default: all.
            collective: of a built-in algorithm, as "reducescatter".

        Raises:
            PlanRefused: its chunks do not divide `count`.
            Unsupported: it does not serve so many ranks.
        """
        from lwcc.authoring import find

        team = range(self.size) if ranks is None else ranks
        first, count = (0, self.chunks) if chunks is None else chunks
        self.end_round()
        if self.rank not in team or len(team) < 2:
            return
        topology = Topology([self._topology.node_of[r] for r in team])
        part = find(algorithm, collective).plan(team.index(self.rank), len(team), topology)
        self._topology.asked |= topology.asked
        if count % part.chunks:
            self._refuse(f"run: {part.chunks} chunks of {algorithm} do not divide {count} chunks")
        self._append(part, team, first, count // part.chunks)

    def _append(self, part: Plan, team: Sequence[int], first: int, each: int) -> None:
        ends, here = set(part.ends), _caller()
        for i, step in enumerate(part.steps):
            at, n = first + step.chunk * each, step.n * each
            peer = team[step.peer] if step.kind in (SEND, RECV_COPY, RECV_REDUCE, FOLD) else 0
            if step.kind in (COPY, REDUCE, FOLD) and (each != 1 or (step.kind == FOLD and len(team) < self.size)):
                self._refuse(f"run: a {KINDS[step.kind]} can only be run on whole chunks of all ranks")
            moved = Step(step.kind, peer, at % self.chunks, n, (first + step.source) if step.kind in (3, 4) else 0)
            self._wrapped(moved, part.where[i] if part.where[i][0] else here)
            if i + 1 in ends:
                self.end_round()

    # ---- inside ----

    def _refuse(self, what: str) -> NoReturn:
        file, line = _caller()
        raise PlanRefused(
            f"{file}:{line}: {self.collective}, rank {self.rank} of {self.size}, round {len(self.ends)}: {what}"
        )

    def _whole(self, what: str, value: object) -> int:
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            self._refuse(f"{what} {value!r}: expected a whole number")

    def _message(self, kind: int, peer: int, chunk: int, count: int) -> None:
        if not type(peer) is type(chunk) is type(count) is int:
            peer, chunk = self._whole(f"{KINDS[kind]}, peer", peer), self._whole(f"{KINDS[kind]}, chunk", chunk)
            count = self._whole(f"{KINDS[kind]}, count", count)
        if not 0 <= peer < self.size or peer == self.rank:
            others = f"others are ranks 0 to {self.size - 1} without {self.rank}"
            self._refuse(f"{KINDS[kind]}, peer {peer}, chunk {chunk}: {others}")
        if self.collective == "barrier":
            self._add(Step(kind, peer, 0, 0))
            return
        if not 1 <= count <= self.chunks:
            self._refuse(f"{KINDS[kind]}, peer {peer}, chunk {chunk}: {count} chunks of {self.chunks}")
        self._wrapped(Step(kind, peer, chunk % self.chunks, count), _caller())

    def _wrapped(self, step: Step, where: tuple[str, int]) -> None:
        """Add a step whose chunks may run over the end: two messages, cut at the same place at both ends."""
        over = step.chunk + step.n - self.chunks
        if over <= 0:
            self._add(step, where)
            return
        self._add(step._replace(n=step.n - over), where)
        self._add(step._replace(chunk=0, n=over), where)

    def _add(self, step: Step, where: Optional[tuple[str, int]] = None) -> None:
        if len(self.steps) >= STEPS_LIMIT:
            self._refuse(f"more than {STEPS_LIMIT} steps; does a loop never end?")
        self.steps.append(step)
        self.where.append(where or _caller())

    # ---- as bytes ----

    def encode(self) -> bytes:
        """Return the plan as bytes (core/src/plan/codec.h)."""
        self.end_round()
        numbers = [*self.ends, *(word for step in self.steps for word in step)]
        number = COLLECTIVES.index(self.collective)
        head = (_MAGIC, _VERSION, number, self.rank, self.size, self.chunks, len(self.ends), len(self.steps))
        return _HEADER.pack(*head) + struct.pack(f"<{len(numbers)}i", *numbers)

    @classmethod
    def decode(cls, data: bytes) -> Plan:
        """Return the plan that `encode`, or the core, has written."""
        magic, version, collective, rank, size, chunks, rounds, steps = _HEADER.unpack_from(data)
        if (magic, version) != (_MAGIC, _VERSION):
            raise ValueError(f"lwcc: {len(data)} bytes are no plan of version {_VERSION}")
        words = struct.unpack_from(f"<{rounds + 5 * steps}i", data, _HEADER.size)
        plan = cls(COLLECTIVES[collective], rank, size, chunks)
        plan.ends = list(words[:rounds])
        plan.steps = [Step(*words[i : i + 5]) for i in range(rounds, len(words), 5)]
        plan.where = [("", 0)] * steps
        return plan


def _caller() -> tuple[str, int]:
    """Return file and line of the code that called a verb: the first frame outside this file."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
