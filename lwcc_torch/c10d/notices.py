"""The works that DDP hands to C++: for a work made in Python that is not enough to keep it."""

from __future__ import annotations

import importlib
import weakref
from typing import Any

from lwcc_torch.c10d.work import LwccWork

_kept: weakref.WeakKeyDictionary[Any, LwccWork] = weakref.WeakKeyDictionary()  # by the model that gave notice


def keep() -> None:
    """See to it that a model's notice to its join context lives until its next one.

    The reducer holds the C++ part of that work alone. Without its Python part, which ends with DDP's forward, it would
    never be complete, and a backward that divides by the ranks still there would wait for it for ever.
    """
    join: Any = importlib.import_module("torch.distributed.algorithms.join").Join
    given = join.notify_join_context
    if hasattr(given, "keeps_lwcc_works"):
        return

    def notify_join_context(joinable: Any) -> Any:
        work = given(joinable)
        if isinstance(work, LwccWork):
            _kept[joinable] = work
        return work

    notify_join_context.__doc__ = given.__doc__
    notify_join_context.keeps_lwcc_works = True  # type: ignore[attr-defined]
    join.notify_join_context = staticmethod(notify_join_context)
