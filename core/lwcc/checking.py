"""`lwcc check`: an algorithm is proved for many numbers of ranks, then run on real data by real ranks."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Callable, NamedTuple, Optional

from lwcc import choosing, proof
from lwcc.authoring import Algorithm, AnyAlgorithm, find
from lwcc.errors import PlanRefused, Unsupported
from lwcc.plan import Plan, Topology

Say = Callable[[str], None]
SIZES = (*range(2, 18), 32, 64)
REAL_SIZES = (2, 3, 4)
_DEADLINE_S = 120
_BUILT_TWICE = 17  # ranks, up to which a plan is built again to see that it stays the same


class Refusal(NamedTuple):
    """The smallest case that fails."""

    size: int
    topology: Topology
    text: str


def parse_sizes(text: str) -> list[int]:
    """Return the numbers of "2-17,32,64", ascending.

    Raises:
        ValueError: something else, or a number outside 1 to 1024.
    """
    sizes: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise ValueError(f"lwcc: {text!r} is no list of numbers of ranks, such as 2-17,32,64")
        sizes.update(range(int(low), int(high or low) + 1))
    if not sizes or min(sizes) < 1 or max(sizes) > 1024:
        raise ValueError(f"lwcc: {text!r}: the proof serves 1 to 1024 ranks")
    return sorted(sizes)


def topologies(size: int) -> Iterator[Topology]:
    """Yield ways to place the ranks: one node, one each, even and uneven blocks, dealt out in turn."""
    yield Topology([0] * size)
    if size < 3:
        yield Topology(range(size))
        return
    half = (size + 1) // 2
    ways = [list(range(size)), [r // 2 for r in range(size)], [r // half for r in range(size)]]
    ways += [[r % 2 for r in range(size)], [int(r > 0) for r in range(size)]]
    seen = {(0,) * size}
    for labels in ways:
        place = Topology(labels)
        if place.node_of not in seen:
            seen.add(place.node_of)
            yield place


def prove_size(algorithm: AnyAlgorithm, size: int) -> tuple[int, Optional[Refusal]]:
    """Prove one number of ranks, on several topologies if the algorithm looks at them.

    Returns:
        How many topologies it serves and was proved for, and the refusal, or None.
    """
    proved = 0
    for place in topologies(size):
        try:
            plans = algorithm.plans(size, place)
            proof.prove(plans, "", algorithm)
            _see_same(algorithm, plans, place)
            proved += 1
        except Unsupported:
            pass
        except PlanRefused as error:
            return proved, Refusal(size, place, str(error))
        if not place.asked:
            break
    return proved, None


def _see_same(algorithm: AnyAlgorithm, plans: Sequence[Plan], place: Topology) -> None:
    """Raise PlanRefused if a second building makes other plans: the ranks, which build by themselves, would differ."""
    in_python = isinstance(algorithm, Algorithm) and len(plans) <= _BUILT_TWICE
    again = algorithm.plans(len(plans), place) if in_python else plans
    for one, other in zip(plans, again):
        if (one.chunks, one.steps, one.ends) != (other.chunks, other.steps, other.ends):
            raise PlanRefused(
                f"{algorithm.name}: rank {one.rank} of {one.size}: built a second time, its plan is another one\n"
                "  a plan may depend on rank, size and nodes alone, not on random numbers or on what was built before"
            )


def prove(algorithm: AnyAlgorithm, sizes: Sequence[int]) -> tuple[list[int], Optional[Refusal]]:
    """Prove many numbers of ranks; return those that it serves, and the refusal of the smallest that fails.

    A failure at one of `sizes` is sought in all smaller numbers too, so that what is shown is short.
    """
    served: list[int] = []
    for size in sizes:
        proved, refusal = prove_size(algorithm, size)
        if refusal is not None:
            smaller = (prove_size(algorithm, below)[1] for below in range(2, size))
            return served, next((found for found in smaller if found is not None), refusal)
        if proved:
            served.append(size)
    return served, None


def _shown(spec: str, refusal: Refusal) -> str:
    """Return the command that draws what was refused."""
    words = ["lwcc", "plan", spec, "-p", str(refusal.size)]
    if refusal.topology.nodes > 1:
        words += ["--nodes", ",".join(map(str, refusal.topology.node_of))]
    return shlex.join([*words, *(word for path in choosing.plugins() for word in ("--plugin", path))])


def ranges(sizes: Sequence[int]) -> str:
    """Return "2-17, 32, 64" for these numbers."""
    parts: list[list[int]] = []
    for size in sizes:
        if parts and size == parts[-1][-1] + 1:
            parts[-1].append(size)
        else:
            parts.append([size])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def run_real(spec: str, collective: str, size: int, per_node: int = 0) -> tuple[bool, str]:
    """Run the algorithm on real data in `size` processes; return whether all was right, and what they said."""
    command = [sys.executable, "-m", "lwcc.launcher", "-np", str(size), "--timeout", str(_DEADLINE_S), "--no-tag"]
    command += ["-m", "lwcc.trial", spec, "--collective", collective, "--per-node", str(per_node)]
    env = {key: value for key, value in os.environ.items() if key not in ("LWCC_ALGORITHM", "LWCC_NODE")}
    env["LWCC_PLUGIN"] = os.pathsep.join(choosing.plugins())
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_DEADLINE_S + 30, check=False)
    said = [line for line in done.stdout.splitlines() if line.strip()]
    if done.returncode == 0:
        return True, said[-1] if said else ""
    wrong = [line for line in said if line.startswith("wrong: ")]
    return False, "\n".join(wrong[:8] or [*said[-8:], *done.stderr.splitlines()[-12:]])


def check(spec: str, sizes: Sequence[int], real: Sequence[int], say: Say, collective: str = "") -> bool:
    """Prove and try an algorithm; `say` gets the lines of the report. Return whether it is right.

    Args:
        spec: "file.py:name", "allreduce=ring", ...; see `lwcc.authoring.find`.
        sizes: numbers of ranks to prove.
        real: numbers of processes to run.
        say: takes one line.
        collective: where the name alone does not say it.
    """
    algorithm = find(spec, collective)
    conditions = algorithm.needs.text() if isinstance(algorithm, Algorithm) else "in C"
    say(f"{algorithm.name}: {algorithm.collective}, {conditions}" + (f". {algorithm.about}" if algorithm.about else ""))
    began = time.monotonic()
    served, refusal = prove(algorithm, sizes)
    if refusal is not None:
        say(f"proof      REFUSED; the fewest ranks that fail are {refusal.size} ({refusal.topology.shape()} on nodes)")
        say(refusal.text)
        say(f"to see it: {_shown(spec, refusal)}")
        return False
    if not served:
        say(f"proof      NOTHING PROVED: it serves none of p = {ranges(sizes)}")
        return False
    say(f"proof      right for p = {ranges(served)} ({time.monotonic() - began:.2f} s)")
    left = [size for size in sizes if size not in served]
    if left:
        say(f"           does not serve p = {ranges(left)}")
    return _try_real(algorithm, spec, real, say)


def _try_real(algorithm: AnyAlgorithm, spec: str, real: Sequence[int], say: Say) -> bool:
    tried = False
    for size in real:
        cases = []
        for per_node in (0, 2) if size % 2 == 0 else (0,):
            labels = [rank // per_node if per_node else 0 for rank in range(size)]
            place = Topology(labels)
            try:
                algorithm.plans(size, place)
            except Unsupported:
                continue
            if not per_node or (place.asked and place.nodes > 1):
                cases.append((per_node, place.shape()))
        for per_node, shape in cases:
            tried = True
            right, text = run_real(spec, algorithm.collective, size, per_node)
            say(f"real data  np = {size} ({shape} on nodes): {'right: ' if right else 'WRONG'}{text if right else ''}")
            if not right:
                say(text)
                return False
    if real and not tried:
        say(f"real data  NOT TRIED: it serves none of np = {ranges(real)}; say --real with numbers that it serves")
    return True
