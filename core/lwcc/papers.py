"""A report's tables as text: markdown, and LaTeX for papers."""

from __future__ import annotations

from collections.abc import Sequence

from lwcc.sections import Section


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
    """Return the tables as LaTeX (booktabs)."""
    special = {c: f"\\{c}" for c in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\^{}", "\\": r"\textbackslash{}"}
    clean = str.maketrans(special)
    text = []
    for part in sections:
        text += [f"% warning: {one}" for one in part.warnings]
        for title, rows in part.tables:
            text += [f"% {title or part.title}", rf"\begin{{tabular}}{{l{'r' * (len(rows[0]) - 1)}}}", r"\toprule"]
            body = [" & ".join(cell.translate(clean) for cell in row) + r" \\" for row in rows]
            text += [body[0], r"\midrule", *body[1:], r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(text)
