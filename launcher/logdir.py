"""The folders of runs on disk, cleared of what an earlier run has left there."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

_RANK_FOLDER = re.compile(r"rank[-.]\d+", re.ASCII)
_RANK_FILES = ("stdout.log", "stderr.log", "stdout.times", "stdout", "stderr")
_JOURNAL = re.compile(r"rank-\d+\.json(\.part)?", re.ASCII)


def clear(folder: str) -> None:
    """Remove what an earlier run of ranks has left in its folder: files of ours by their names, and nothing else."""
    for name in _names(folder):
        if _RANK_FOLDER.fullmatch(name):
            _remove(os.path.join(folder, name), lambda file: file in _RANK_FILES)
    _remove(os.path.join(folder, "journal"), lambda file: bool(_JOURNAL.fullmatch(file)))


def _names(folder: str) -> list[str]:
    """What is in a folder; nothing if it is none, or a link to elsewhere."""
    return sorted(os.listdir(folder)) if os.path.isdir(folder) and not os.path.islink(folder) else []


def _remove(folder: str, ours: Callable[[str], bool]) -> None:
    """Remove files of a folder, and the folder if it is empty then."""
    found = [name for name in _names(folder) if ours(name)]
    for name in found:
        os.unlink(os.path.join(folder, name))
    if found and not os.listdir(folder):
        os.rmdir(folder)
