"""`join`: a rank that is out of data lets the others go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

import lwcc
from lwcc_torch import engine, hooks

if TYPE_CHECKING:
    from lwcc.process_sets import ProcessSet


def join(device: int = -1, *, process_set: Optional[ProcessSet] = None) -> int:
    """Say that this rank is out of data; return, when all ranks of the set have, the rank that said so last.

    Meanwhile this rank takes part in the others' calls of every kind, their optimizers' included, with neutral
    elements, and Average divides by the ranks that contribute. Its parameters stay as they are: broadcast those of the
    returned rank before going on. `device` is Horovod's, and ignored. For more, and what is raised, see `lwcc.join`.
    """
    last = lwcc.join(process_set=process_set)
    engine.unnamed.joined(process_set)
    hooks.joined(process_set)
    return last
