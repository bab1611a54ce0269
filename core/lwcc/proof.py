"""Plans of all ranks, proved and priced by the core; what a refusal says is tied to the author's lines."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional

from lwcc import context
from lwcc._native import ffi, lib
from lwcc.errors import PlanRefused
from lwcc.plan import Plan

if TYPE_CHECKING:
    from lwcc.authoring import AnyAlgorithm

_PLACE = re.compile(
    r"rank (\d+)(?:(?:, round| leaves, after round) \d+, step (\d+)|.*last written in round \d+ by step (\d+))"
)


class Cost(NamedTuple):
    """What the busiest rank does.

    Attributes:
        name: with the plans' fingerprint; "" if they were only proved.
        rounds: how many; a fold counts two.
        sent: payloads that it sends (1.5: one and a half times the buffer).
        reduced: payloads that it adds.
    """

    name: str
    rounds: int
    sent: float
    reduced: float


def prove(plans: Sequence[Plan], name: str = "", author: Optional[AnyAlgorithm] = None) -> Cost:
    """Prove the plans of all ranks together, and keep them as an algorithm if a name is given; return their cost.

    Args:
        plans: of ranks 0 to size - 1.
        name: under which requests find them.
        author: whose they are, for the text of a failure.

    Raises:
        PlanRefused: they are wrong; the text names rank, round, step, chunk, and file and line where they are known.
        Unsupported: too many ranks for a proof (1024).
    """
    data = [ffi.from_buffer(plan.encode()) for plan in plans]
    wanted = ffi.new("lwcc_definition *")
    keep = (
        ffi.new("char[]", name.encode()),
        ffi.new("void *[]", data),
        ffi.new("size_t[]", [len(plan) for plan in data]),
    )
    wanted.name = keep[0] if name else ffi.NULL
    wanted.size, wanted.plans, wanted.nbytes = len(plans), keep[1], keep[2]
    made = ffi.new("lwcc_defined *")
    status = lib.lwcc_algorithm_define(wanted, made)
    if status < 0:
        failure = context.failure(status)
        if isinstance(failure, PlanRefused):
            failure = PlanRefused(explain(str(failure), plans, author), failure.code)
        raise failure
    return Cost(ffi.string(made.name).decode(), made.rounds, made.sent, made.reduced)


def explain(text: str, plans: Sequence[Plan], author: Optional[AnyAlgorithm]) -> str:
    """Add the algorithm's name, and the line that wrote the step which the core's text is about."""
    title = f"{author.name}: " if author is not None else ""
    found = _PLACE.search(text)
    if not found:
        return title + text
    step = found[2] or found[3]
    if step is None or int(step) >= len(plans[int(found[1])].where):
        return title + text
    file, line = plans[int(found[1])].where[int(step)]
    return f"{title}{text}" + (f"\n  that step was written by {os.path.relpath(file)}:{line}" if file else "")
