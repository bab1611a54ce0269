"""The gloo backend beside a group, for what the core has no collective for."""

from __future__ import annotations

from typing import Any

import torch.distributed

dist: Any = torch.distributed  # what its stubs leave out


def backend(options: Any) -> Any:
    """Return a gloo backend for a group, which connects two ranks when they first talk.

    It has a network device of its own: groups that share one wait for each other's connections.

    Args:
        options: torch's `_DistributedBackendOptions`.
    """
    settings = dist.ProcessGroupGloo._Options()
    settings._devices = [dist.ProcessGroupGloo.create_default_device(lazy_init=True)]
    settings._threads, settings._timeout = 2, options.timeout
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
