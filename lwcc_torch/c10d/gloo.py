"""The gloo backend beside a group, for what the core has no collective for."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch.distributed

dist: Any = torch.distributed  # what its stubs leave out


@lru_cache(maxsize=1)
def _device() -> Any:
    """Return gloo's network device, one for all groups, that connects two ranks when they first talk."""
    return dist.ProcessGroupGloo.create_default_device(lazy_init=True)


def backend(options: Any) -> Any:
    """Return a gloo backend for a group; it opens no connection yet.

    Args:
        options: torch's `_DistributedBackendOptions`.
    """
    settings = dist.ProcessGroupGloo._Options()
    settings._devices, settings._threads, settings._timeout = [_device()], 2, options.timeout
    store = dist.PrefixStore("gloo/", options.store)
    return dist.ProcessGroupGloo(store, options.group_rank, options.group_size, settings)


def as_options(kind: Any, given: Any) -> Any:
    """Return an options object; `given` may be one, a `ReduceOp` or None."""
    if isinstance(given, kind):
        return given
    options = kind()
    if given is not None:
        options.reduceOp = given
    return options
