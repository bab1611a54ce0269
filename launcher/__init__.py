"""lwccrun: starts the ranks of a job, watches them, and says which one failed and why.

Imports neither a framework nor the native core: it meets the ranks through LWCC_* variables and the rendezvous store.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run lwccrun with argv (default: the process's arguments); return its exit code."""
    from lwcc.launcher.command import run_command

    return run_command(argv)
