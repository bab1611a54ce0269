"""All algorithms: the table of `lwcc algos`, and docs/algorithms.md with a page for each, which are written from it."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from typing import Optional

from lwcc import checking, drawing, inspection, ops, pricing, proof
from lwcc.authoring import BuiltIn
from lwcc.errors import Unsupported

_MODEL = (15e-6, 0.4e-9, 0.05e-9)
_PAGE_SIZES = (2, 3, 4, 5, 7, 8, 16, 17)
_NOTE = "Written by `lwcc algos --write docs`; a test compares. Don't edit: change the algorithm's file and write anew."


def built_in(collective: Optional[str] = None) -> Iterator[BuiltIn]:
    """Yield the built-in algorithms and the plugins' that have been loaded; ValueError for no such collective."""
    if collective is not None:
        ops.collective_number(collective)
    for name in [collective] if collective else ops.COLLECTIVE_NAMES:
        for algorithm in inspection.algorithms(name):
            yield BuiltIn(name, algorithm)


def conditions(algorithm: BuiltIn) -> str:
    """Return which of 2 to 17 ranks it serves, in words."""
    served = []
    for size in range(2, 18):
        try:
            algorithm.plan(0, size)
            served.append(size)
        except Unsupported:
            continue
    if len(served) == 16:
        return "any p"
    powers = [size for size in served if size & (size - 1) == 0]
    return "p = 2^k" if served == powers else f"p = {checking.ranges(served)}" if served else "none of p = 2-17"


def table(collective: Optional[str], size: int, model: pricing.Model) -> list[str]:
    """Return lines for each algorithm: conditions, cost for `size` ranks, us by the model; below, what it is."""
    times = "".join(f"{pricing._nbytes(n):>11}" for n in pricing.SHOWN_NBYTES)
    lines = [
        f"costs for p = {size}: rounds, payloads sent and added by the busiest rank, and estimated us of a payload of",
        f"{'':<22}{'serves':<10}{'rounds':>7}{'sent':>8}{'added':>8}{times}",
    ]
    heading = ""
    for algorithm in built_in(collective):
        if algorithm.collective != heading:
            heading = algorithm.collective
            lines.append(heading)
        title = f"  {algorithm.name:<20}{conditions(algorithm):<10}"
        try:
            plans = algorithm.plans(size)
        except Unsupported:
            lines.append(f"{title}{'does not serve so many ranks':>30}")
        else:
            cost = proof.prove(plans)
            spent = "".join(f"{1e6 * pricing.finish(plans, n, model):>11.1f}" for n in pricing.SHOWN_NBYTES)
            lines.append(f"{title}{cost.rounds:>7}{cost.sent:>8.3f}{cost.reduced:>8.3f}{spent}")
        lines += textwrap.wrap(algorithm.about, 100, initial_indent="    ", subsequent_indent="    ")
    return lines


def page(algorithm: BuiltIn) -> str:
    """Return the page of one algorithm, in Markdown."""
    lines = [f"# {algorithm.collective}: {algorithm.name}", "", _NOTE, "", _capital(algorithm.about) + ".", ""]
    lines += [
        f"Serves {conditions(algorithm)}. Use it: `lwccrun --algorithm {algorithm.collective}={algorithm.name}`.",
        "",
    ]
    lines += [
        "| ranks | rounds | sent by the busiest rank | added | critical path | least sent |",
        "|--|--|--|--|--|--|",
    ]
    for size in _PAGE_SIZES:
        try:
            plans = algorithm.plans(size)
        except Unsupported:
            continue
        cost, path = proof.prove(plans), pricing.critical_path(plans)
        least = pricing.bound(algorithm.collective, size)
        lines.append(
            f"| {size} | {cost.rounds} | {cost.sent:.3f} n | {cost.reduced:.3f} n | {path.messages} messages, "
            f"{path.payloads:.3f} n | {least.sent:.3f} n |"
        )
    plans = algorithm.plans(4)
    return "\n".join([*lines, "", "For four ranks:", "```", *drawing.rounds(plans), "```", ""])


def overview() -> str:
    """Return docs/algorithms.md."""
    lines = ["# Algorithms", "", _NOTE, ""]
    lines += [
        "n is the payload of a rank (allgather, alltoall, reducescatter: all blocks together), p the number of ranks.",
        "Costs are of the busiest of 8 ranks. `lwcc algos -p 16 --model 50,8,0.05` prices for other ranks and wires",
        "(us per message, ns per byte sent, ns per byte added); `lwcc plan allreduce=ring -p 4` draws.",
        "[Write your own](write-your-own-allreduce.md).",
    ]
    for collective in ops.COLLECTIVE_NAMES:
        lines += [
            "",
            f"## {collective}",
            "| algorithm | serves | rounds | sent | added | about |",
            "|--|--|--|--|--|--|",
        ]
        for algorithm in built_in(collective):
            cost = proof.prove(algorithm.plans(8))
            link = f"[{algorithm.name}](algorithms/{collective}_{algorithm.name}.md)"
            costs = f"{cost.rounds} | {cost.sent:.3f} n | {cost.reduced:.3f} n"
            lines.append(f"| {link} | {conditions(algorithm)} | {costs} | {algorithm.about} |")
    return "\n".join([*lines, ""])


def pages() -> dict[str, str]:
    """Return the text of every page, by its path within the docs folder."""
    found = {"algorithms.md": overview()}
    for algorithm in built_in():
        found[f"algorithms/{algorithm.collective}_{algorithm.name}.md"] = page(algorithm)
    return found


def write(folder: str) -> Sequence[str]:
    """Write all pages into a folder; return their paths."""
    os.makedirs(os.path.join(folder, "algorithms"), exist_ok=True)
    made = []
    for name, text in pages().items():
        made.append(os.path.join(folder, name))
        with open(made[-1], "w", encoding="utf-8") as file:
            file.write(text)
    return made


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
