"""A report's tables as text: markdown, and LaTeX for papers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lwcc.sections import Rows, Section

LONG = 60  # characters of a cell that is wrapped
_SPECIAL = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
)
_FIGURE = re.compile(r"[-+\d.,e]+ ?(%|x|[numk]?s|[KMG]?i?B)?( \([-+\d.e]+\))?|\d+ of \d+")
_MICRO = re.compile(r"\b(\d[\d.]*) us\b")


def markdown(sections: Sequence[Section]) -> str:
    """Return the tables as markdown."""
    text = ["# LWCC report"]
    for part in sections:
        text += [f"\n## {part.title}", *(f"**warning: {one}**\n" for one in part.warnings), part.about]
        for title, rows in part.tables:
            text += [f"\n### {title}" if title else "", "| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
            text += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows[1:]]
    return "\n".join(text) + "\n"


def latex(sections: Sequence[Section]) -> str:
    """Return the tables as LaTeX (booktabs), each of them a float with caption and label."""
    text = [
        r"% Needs \usepackage{booktabs}. Too wide: \resizebox{\linewidth}{!}{...} around its tabular.",
        "",
    ]
    number = 0
    for part in sections:
        text += [f"% warning: {one}" for one in part.warnings]
        for title, rows in part.tables:
            number += 1
            text += [*_table(title or part.title, rows, number), ""]
    return "\n".join(text)


def _table(title: str, rows: Rows, number: int) -> list[str]:
    """One table; the number keeps apart the labels of equal titles."""
    label = re.sub(r"[^A-Za-z0-9]+", "-", f"{number} {title}").strip("-").lower()
    columns = "".join(_column([row[k] for row in rows[1:]]) for k in range(len(rows[0])))
    body = [" & ".join(map(_cell, row)) + r" \\" for row in rows]
    return [
        r"\begin{table}", r"\centering", rf"\caption{{{_cell(title)}}}", rf"\label{{tab:lwcc-{label}}}",
        rf"\begin{{tabular}}{{{columns}}}", r"\toprule", body[0], r"\midrule", *body[1:], r"\bottomrule",
        r"\end{tabular}", r"\end{table}",
    ]  # fmt: skip


def _column(cells: Sequence[str]) -> str:
    """Figures are put to the right, text to the left, and long text is wrapped."""
    told = [cell for cell in cells if cell != "-" and not cell.startswith("exit ")]
    if told and all(_FIGURE.fullmatch(cell) for cell in told):
        return "r"
    return r"p{0.6\linewidth}" if any(len(cell) > LONG for cell in cells) else "l"


def _cell(text: str) -> str:
    """A text as LaTeX shows it: two hyphens stay two, and microseconds have their letter."""
    return _MICRO.sub(r"\1 $\\mu$s", text.translate(_SPECIAL).replace("--", "-{}-"))
