"""What `import torch` loads by itself (its entry point "torch.backends"): the name of the torch.distributed backend.

Only names are set here; the backend's code is loaded by the first process group that is made with it.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

NAME = "lwcc"


def register() -> None:
    """Make `torch.distributed.init_process_group("lwcc")` known. Harmless when called again."""
    distributed: Any = importlib.import_module("torch.distributed")
    if not distributed.is_available() or hasattr(distributed.Backend, NAME.upper()):
        return
    distributed.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
    _watch_barriers(distributed)


def _create(options: Any, backend_options: Any) -> Any:
    return importlib.import_module("lwcc_torch.c10d.group").create(options, backend_options)


def _watch_barriers(distributed: Any) -> None:
    """Let `monitored_barrier`, which torch allows to gloo alone, reach the groups of this backend too."""
    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
    original = c10d.monitored_barrier

    @functools.wraps(original)
    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        chosen = group
        if chosen is None and distributed.is_initialized():
            chosen = c10d.group.WORLD
        if getattr(chosen, "is_lwcc", False):
            chosen.monitored_barrier(timeout, wait_all_ranks)
        else:
            original(group, timeout, wait_all_ranks)

    c10d.monitored_barrier = distributed.monitored_barrier = monitored_barrier
