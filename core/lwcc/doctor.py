"""`lwcc doctor`: what this machine offers to a job, and what to do where something lacks."""

from __future__ import annotations

import argparse
import os
import textwrap
from typing import Any

_FABRIC = ("rc", "dc", "ud", "srd", "gga", "ugni")  # the beginnings of UCX's names for ways over a fabric
_UCX = "ucx       "


def lines() -> list[str]:
    """Return the lines of the report. Loads UCX, where there is one."""
    import lwcc
    from lwcc import inspection

    cores = len(os.sched_getaffinity(0))
    found = [f"lwcc      {lwcc.__version__} (core {inspection.version()}), {cores} core{'s' * (cores > 1)}"]
    return found + _ucx()


def _ucx() -> list[str]:
    from lwcc import inspection
    from lwcc.errors import LwccError

    try:
        path, version, ways = inspection.ucx()
    except LwccError as error:
        text = textwrap.wrap(f"not usable: {error}", 110, break_long_words=False, break_on_hyphens=False)
        return [(_UCX if i == 0 else " " * len(_UCX)) + line for i, line in enumerate(text)]
    fabric = [way for way in ways if way.startswith(_FABRIC)]
    advice = (
        "serves " + ", ".join(fabric) + ": LWCC_TRANSPORT=shm+ucx"
        if fabric
        else "no InfiniBand or RoCE among them: UCX gains nothing here over the default (LWCC's TCP and shared memory)"
    )
    indent = " " * len(_UCX)
    return [f"{_UCX}{version} from {path}", indent + "can use " + (", ".join(ways) or "nothing"), indent + advice]


def _run(args: argparse.Namespace) -> int:
    print("\n".join(lines()))
    return 0


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    commands.add_parser("doctor", help="what this machine offers: UCX, and its networks").set_defaults(run=_run)
