"""The folders and files of runs on disk: made, written whole or not at all, and cleared of an earlier run's."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from lwcc.launcher.spawn import CannotRun

_RANK_FOLDER = re.compile(r"rank[-.]\d+", re.ASCII)
_RANK_FILES = ("stdout.log", "stderr.log", "stdout.times", "stdout", "stderr")
_JOURNAL = re.compile(r"rank-\d+\.json(\.part)?", re.ASCII)


def fault(path: str) -> str:
    """Why there can be no run directory, as far as looking tells; "" if there can be. Makes nothing."""
    found = os.path.abspath(path)
    while not os.path.lexists(found):
        found = os.path.dirname(found)
    if not os.path.isdir(found):
        what = "a file" if os.path.isfile(found) else "no folder"
        return f"it is {what}" if found == os.path.abspath(path) else f"{found} is {what}"
    if os.access(found, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        return ""
    return os.strerror(errno.EROFS if os.statvfs(found).f_flag & os.ST_RDONLY else errno.EACCES)


def make(path: str, option: str) -> None:
    """Make a run directory. Raises CannotRun with the option that named it, and what is wrong."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise CannotRun(f"{option} {path}: {fault(path) or error.strerror or error}", 2) from None


def write_json(path: str, record: Mapping[str, Any]) -> None:
    """Write a file that is never seen half-written. Raises OSError, and leaves what was there before."""
    part = path + ".part"
    try:
        with open(part, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=2)
            file.write("\n")
        os.replace(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


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
