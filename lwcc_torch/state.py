"""Bringing all ranks to the state of one: parameters, optimizer state, any object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import torch

import lwcc
from lwcc import context, errors
from lwcc import ops as core
from lwcc_torch import engine
from lwcc_torch.engine import Call

if TYPE_CHECKING:
    from lwcc.process_sets import ProcessSet

Named = Union[Mapping[str, Any], Iterable[Any]]


class _Described(NamedTuple):
    """Stands for a tensor in a description; the tensor itself travels on its own."""

    number: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def _once(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view with each element once, where `expand` lets one stand for many: it cannot be written as it is."""
    for dim, (length, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        if length > 1 and stride == 0:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _broadcast_all(tensors: dict[str, torch.Tensor], root: int, process_set: Optional[ProcessSet] = None) -> None:
    """Overwrite the tensors, of any strides, with those of the root; all are under way at once."""
    tickets, copies = [], []
    for name, tensor in tensors.items():
        data = _once(tensor.detach())
        whole = data if data.is_contiguous() else data.contiguous()
        if whole is not data:
            copies.append((data, whole))
        call = Call(core.BROADCAST, name, root=root, process_set=process_set, in_place=True)
        tickets += engine.start([call], [whole])
    engine.finish(tickets)
    if context.rank() != root:
        for data, whole in copies:
            data.copy_(whole)


def broadcast_parameters(params: Named, root_rank: int = 0, process_set: Optional[ProcessSet] = None) -> None:
    """Overwrite tensors on all ranks with those of `root_rank`.

    Args:
        params: `model.state_dict()`, `model.named_parameters()` or `model.parameters()`; a dict, a list or any iterable
            of tensors or (name, tensor) pairs; same names, shapes and dtypes on every rank.
        root_rank: a global rank.
        process_set: the ranks that take part.

    Raises:
        TypeError: a module instead of its `state_dict()`, or nothing of tensors; a root that is no int.
        ValueError: something that is not a tensor (use `broadcast_object`), or a name twice.
        Mismatch: the ranks disagree about a tensor.
    """
    core.whole(root_rank, "root_rank")
    if isinstance(params, torch.nn.Module):
        raise TypeError(f"lwcc: broadcast_parameters({type(params).__name__}): give its state_dict() or parameters()")
    if isinstance(params, torch.Tensor) or not isinstance(params, Iterable):
        raise TypeError(f"lwcc: broadcast_parameters: {type(params).__name__} is no dict or list of tensors")
    tensors: dict[str, torch.Tensor] = {}
    for i, item in enumerate(params.items() if isinstance(params, Mapping) else params):
        name, tensor = item if isinstance(item, tuple) else (str(i), item)
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"lwcc: broadcast_parameters: {name!r} is {type(tensor).__name__}; use broadcast_object")
        if f"parameters.{name}" in tensors:
            raise ValueError(f"lwcc: broadcast_parameters: the name {name!r} comes twice")
        tensors[f"parameters.{name}"] = tensor
    _broadcast_all(tensors, root_rank, process_set)


def _take_out(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return `value` with each tensor in it, at any depth, replaced by its description and moved to `tensors`."""
    if isinstance(value, torch.Tensor):
        dense = value.detach() if value.layout is torch.strided else value
        tensors.append(dense)
        stride = torch.empty_like(dense, device="meta").stride()
        return _Described(len(tensors) - 1, tuple(value.shape), stride, value.dtype)
    if isinstance(value, dict):
        return {key: _take_out(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_take_out(item, tensors) for item in value)
    return value


def _put_in(value: Any, tensors: dict[int, torch.Tensor]) -> Any:
    """Undo `_take_out`, with new tensors, whose content is still to come."""
    if isinstance(value, _Described):
        tensors[value.number] = torch.empty_strided(value.shape, value.stride, dtype=value.dtype)
        return tensors[value.number]
    if isinstance(value, dict):
        return {key: _put_in(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_put_in(item, tensors) for item in value)
    return value


def _agree(optimizer: torch.optim.Optimizer) -> None:
    """Make sure that the ranks' optimizers can have one state. Collective, so that all ranks fail or none."""
    name = type(optimizer).__name__.removeprefix("Distributed")  # a rank may wrap it later
    lengths = ", ".join(str(len(group["params"])) for group in optimizer.param_groups)
    kinds = lwcc.allgather_object(f"{name} of {lengths} parameters", name="optimizer_state.kind")
    other = next((rank for rank, kind in enumerate(kinds) if kind != kinds[0]), None)
    if other is not None:
        raise errors.Mismatch(
            "lwcc: broadcast_optimizer_state: the ranks' optimizers differ: "
            f"rank {other}: {kinds[other]}; rank 0: {kinds[0]}"
        )


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int = 0, model: Optional[torch.nn.Module] = None
) -> None:
    """Give the optimizers of all ranks the state and the settings of the one on `root_rank`.

    State that a rank lacks is made from the root's description, and state that the root lacks is dropped: no step is
    taken and no parameter changes.

    Args:
        optimizer: plain or distributed; its groups have the same numbers of parameters on every rank.
        root_rank: a global rank.
        model: accepted for compatibility; not needed.

    Raises:
        TypeError: no optimizer, such as its state_dict().
        Mismatch: the ranks' optimizers are of different classes, or their groups differ in number or length.
    """
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(f"lwcc: broadcast_optimizer_state needs an optimizer, not {type(optimizer).__name__}")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    is_root = context.rank() == root_rank
    found: list[torch.Tensor] = []
    description: Any = None
    if is_root:
        groups = [{**group, "params": len(group["params"])} for group in optimizer.param_groups]
        states = {i: dict(optimizer.state[p]) for i, p in enumerate(parameters) if p in optimizer.state}
        description = _take_out((groups, states), found)
    description = lwcc.broadcast_object(description, root_rank, name="optimizer_state")
    _agree(optimizer)
    received: dict[int, torch.Tensor] = dict(enumerate(found))
    if not is_root:
        groups, states = _put_in(description, received)
    _broadcast_all({f"optimizer_state.{i}": received[i] for i in sorted(received)}, root_rank)
    if is_root:
        return
    for group, new in zip(optimizer.param_groups, groups):
        group.update({key: value for key, value in new.items() if key != "params"})
    for i, p in enumerate(parameters):
        optimizer.state.pop(p, None)
        if i in states:
            optimizer.state[p] = states[i]


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: Optional[str] = None, process_set: Optional[ProcessSet] = None
) -> Any:
    """Return the object of `root_rank`, pickled on its way, on every rank."""
    return lwcc.broadcast_object(obj, root_rank, name=name, process_set=process_set)


def allgather_object(obj: Any, name: Optional[str] = None, process_set: Optional[ProcessSet] = None) -> list[Any]:
    """Return the objects of all ranks, in rank order."""
    return lwcc.allgather_object(obj, name=name, process_set=process_set)
