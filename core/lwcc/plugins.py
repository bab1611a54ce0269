"""`lwcc plugin build`: C files, written like those in core/src/algo, become a shared object for `--plugin`."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

from lwcc.plan import COLLECTIVES

FLAGS = ("-std=c11", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra")
_DESCRIPTOR = re.compile(rf"\bconst\s+lwcc_algo\s+lwcc_algo_(({'|'.join(COLLECTIVES)})_([a-z][a-z0-9_]*))\s*=")


class Descriptor(NamedTuple):
    """A `const lwcc_algo lwcc_algo_<collective>_<name>` that a source defines."""

    stem: str
    name: str


def include_folder() -> str:
    """Return where lwcc/plan.h and lwcc/lwcc.h are: within the package, or in the source tree.

    Raises:
        ValueError: nowhere.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in (os.path.join(here, "include"), os.path.join(os.path.dirname(here), "include")):
        if os.path.isfile(os.path.join(folder, "lwcc", "plan.h")):
            return folder
    raise ValueError(f"lwcc: the header lwcc/plan.h is neither in {here}/include nor beside it; install lwcc again")


def descriptors(path: str) -> list[Descriptor]:
    """Return what a C file defines.

    Raises:
        ValueError: nothing.
        OSError: the file can't be read.
    """
    with open(path, encoding="utf-8") as file:
        found = [Descriptor(match[1], match[3]) for match in _DESCRIPTOR.finditer(file.read())]
    if not found:
        raise ValueError(f"lwcc: {path} defines no `const lwcc_algo lwcc_algo_<collective>_<name> = ...`")
    return found


def table(found: Sequence[Descriptor]) -> str:
    """Return the C text of the plugin's table."""
    lines = ['#include "lwcc/plan.h"', *(f"extern const lwcc_algo lwcc_algo_{d.stem};" for d in found)]
    rows = ", ".join(f'{{"{d.name}", &lwcc_algo_{d.stem}}}' for d in found)
    return "\n".join([*lines, f"LWCC_PLUGIN_TABLE = {{{rows}, {{0, 0}}}};", ""])


def build(sources: Sequence[str], output: str = "", compiler: str = "") -> str:
    """Compile C files to a plugin; return its path.

    Args:
        sources: the files; each defines one algorithm or more.
        output: the shared object; default lib<first file>.so in the current folder.
        compiler: default $CC, or cc.

    Raises:
        ValueError: a file defines no algorithm, there is no compiler, or it failed (the text has what it said).
    """
    found = [d for path in sources for d in descriptors(path)]
    made = output or f"lib{os.path.splitext(os.path.basename(sources[0]))[0]}.so"
    with tempfile.TemporaryDirectory() as folder:
        extra = os.path.join(folder, "plugin_table.c")
        with open(extra, "w", encoding="utf-8") as file:
            file.write(table(found))
        chosen = shlex.split(compiler or os.environ.get("CC", "") or "cc")
        command = [*chosen, *FLAGS, "-I", include_folder(), "-o", made, *sources, extra]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise ValueError(f"lwcc: cannot run the compiler {chosen[0]}: {error}; say --compiler or set CC") from error
    if done.returncode != 0:
        raise ValueError(f"lwcc: the compiler failed: {shlex.join(command)}\n{done.stderr.strip()}")
    return made
