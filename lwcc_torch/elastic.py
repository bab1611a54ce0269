"""Horovod's elastic interface as far as a fixed set of ranks allows: commit, restore after a failure, sync.

    @elastic.run
    def train(state):
        for state.epoch in range(state.epoch, 10):
            ...
            state.commit()

    train(elastic.TorchState(model=model, optimizer=optimizer, epoch=0))

A failure that leaves all ranks alive (a request that stalled past its limit) goes back to the last commit and on. A
lost rank cannot be replaced yet: the state goes back to the last commit, for the script to save, and `PeerLost` is
raised. A `Mismatch` is an error of the program, and is raised at once.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Any, Callable, Optional

import torch

import lwcc
from lwcc import context
from lwcc.errors import HostsUpdatedInterrupt, LwccError, Mismatch, PeerLost, ShutDown
from lwcc_torch.state import broadcast_optimizer_state, broadcast_parameters

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]


class State:
    """What `run` takes back to the last commit. Subclasses say how to save, restore and sync."""

    def __init__(self) -> None:
        self._reset_callbacks: list[Callable[[], None]] = []
        self.commits = 0

    def register_reset_callbacks(self, callbacks: list[Callable[[], None]]) -> None:
        """Have these called after a failure, before training goes on."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Call what was registered."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Accepted for compatibility: the set of hosts is fixed, so this never comes."""

    def commit(self) -> None:
        """Save, as the point to which a failure goes back."""
        self.save()
        self.commits += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise `HostsUpdatedInterrupt` when hosts come or go, which a fixed set of ranks never does."""

    def save(self) -> None:
        """Keep a copy of the state in this process."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the copy."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take over the state of rank 0; collective."""
        raise NotImplementedError

    def reset(self) -> None:
        """Prepare for going on; nothing to do here."""


class ObjectState(State):
    """State of attributes that can be pickled and copied: `ObjectState(epoch=0, batch=0)`."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self._names = list(attributes)
        self._saved: dict[str, Any] = {}
        for name, value in attributes.items():
            setattr(self, name, value)
        ObjectState.save(self)

    def _current(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def save(self) -> None:
        """Keep deep copies of the attributes."""
        self._saved = copy.deepcopy(self._current())

    def restore(self) -> None:
        """Set the attributes as they were saved."""
        for name, value in copy.deepcopy(self._saved).items():
            setattr(self, name, value)

    def sync(self) -> None:
        """Take over the attributes of rank 0, and save."""
        for name, value in lwcc.broadcast_object(self._current(), 0, name="elastic.attributes").items():
            setattr(self, name, value)
        ObjectState.save(self)


class TorchState(ObjectState):
    """State of models, optimizers, samplers and further attributes.

    Args:
        model: a module, saved and restored by its state_dict.
        optimizer: likewise; plain or distributed.
        **attributes: samplers (`ElasticSampler`), other modules and optimizers, and anything that can be pickled.
    """

    def __init__(
        self, model: Optional[torch.nn.Module] = None, optimizer: Optional[torch.optim.Optimizer] = None,
        **attributes: Any,
    ) -> None:  # fmt: skip
        found = {"model": model, "optimizer": optimizer, **attributes}
        self._parts = {name: part for name, part in found.items() if hasattr(part, "load_state_dict")}
        self._kept: dict[str, Any] = {}
        for name, part in self._parts.items():
            setattr(self, name, part)
        super().__init__(**{name: value for name, value in attributes.items() if name not in self._parts})
        self._keep()

    def _keep(self) -> None:
        self._kept = {name: copy.deepcopy(part.state_dict()) for name, part in self._parts.items()}

    def save(self) -> None:
        """Keep copies of all parts and attributes."""
        super().save()
        self._keep()

    def restore(self) -> None:
        """Load the copies; gradients under way are dropped."""
        super().restore()
        for name, part in self._parts.items():
            part.load_state_dict(copy.deepcopy(self._kept[name]))

    def sync(self) -> None:
        """Take over rank 0's parts and attributes; samplers keep what any rank has processed. Saves."""
        for name, part in self._parts.items():
            if isinstance(part, torch.nn.Module):
                broadcast_parameters(part.state_dict(), root_rank=0)
            elif isinstance(part, torch.optim.Optimizer):
                broadcast_optimizer_state(part, root_rank=0)
            elif isinstance(part, ElasticSampler):
                part.merge()
            else:
                part.load_state_dict(lwcc.broadcast_object(part.state_dict(), 0, name=f"elastic.{name}"))
        super().sync()
        self._keep()

    def reset(self) -> None:
        """Deal out again what the samplers have left."""
        for part in self._parts.values():
            if isinstance(part, ElasticSampler):
                part.reset()


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Deals a dataset out to the ranks, and leaves out what was processed when it deals again.

    Args:
        dataset: anything with a length.
        shuffle: in an order that depends on seed and epoch alone.
        seed: the same on every rank.
    """

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        self.remaining_indices: list[int] = []
        self.indices: list[int] = []
        self.rank, self.num_replicas = 0, 1
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: nothing is processed yet."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that this rank has processed its `batch_idx`-th batch since the last reset."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: Any) -> None:
        """Note that these indices are processed."""
        self.processed_indices.update(int(i) for i in indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """Return the indices of a batch of this rank."""
        return self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def reset(self) -> None:
        """Deal out what is left to the ranks there are; where it doesn't divide, some indices come twice."""
        ready = context.is_initialized()
        self.rank, self.num_replicas = (context.rank(), context.size()) if ready else (0, 1)
        left = [i for i in range(len(self.dataset)) if i not in self.processed_indices]
        if self.shuffle:
            order = torch.randperm(len(left), generator=torch.Generator().manual_seed(self.seed + self.epoch))
            left = [left[i] for i in order.tolist()]
        self.remaining_indices = left
        total = -(-len(left) // self.num_replicas) * self.num_replicas
        padded = (left * (total // len(left) + 1))[:total] if left else []
        self.indices = padded[self.rank :: self.num_replicas]

    def merge(self) -> None:
        """Take what any rank has processed for processed, and deal out the rest; collective."""
        everybody = lwcc.allgather_object((self.epoch, sorted(self.processed_indices)), name="elastic.sampler")
        self.epoch = everybody[0][0]
        self.processed_indices = {i for epoch, indices in everybody if epoch == self.epoch for i in indices}
        self.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes."""
        return {"epoch": self.epoch, "processed_indices": sorted(self.processed_indices)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where that state was."""
        self.epoch, self.processed_indices = state_dict["epoch"], set(state_dict["processed_indices"])
        self.reset()

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate `func(state, ...)`: it begins with rank 0's state, and after a failure anew from the last commit.

    Raises (the decorated function):
        PeerLost: a rank died; the state is that of the last commit.
        Mismatch: an error of the program.
        LwccError: a failure that came again before anything was committed.
    """

    @functools.wraps(func)
    def train(state: State, *args: Any, **kwargs: Any) -> Any:
        skip_sync, failed_at = False, -1
        while True:
            if not skip_sync:
                state.sync()
            try:
                return func(state, *args, **kwargs)
            except HostsUpdatedInterrupt as update:
                skip_sync = update.skip_sync
            except (Mismatch, ShutDown):
                raise
            except PeerLost as error:
                state.restore()
                error.args = (f"{error}; elastic: lost ranks cannot be replaced yet, start the job again",)
                raise
            except LwccError:
                state.restore()
                if failed_at == state.commits:
                    raise
                failed_at, skip_sync = state.commits, False
            state.on_reset()

    return train
