"""DistributedOptimizer: the user's optimizer, whose `step` works on gradients reduced over the ranks."""

from __future__ import annotations

import itertools
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Optional, Union

import torch

from lwcc import context, journal
from lwcc.collectives import set_id
from lwcc.ops import Op, as_op
from lwcc_torch import adasum, engine
from lwcc_torch.adasum import AdasumDistributed
from lwcc_torch.buckets import LIMIT_BYTES, Options
from lwcc_torch.compression import Compression, Compressor
from lwcc_torch.hooks import Reducer
from lwcc_torch.layout import Named

if TYPE_CHECKING:
    from lwcc.authoring import Choice
    from lwcc.process_sets import ProcessSet

Groups = Union[int, Sequence[Sequence[torch.Tensor]], None]
_numbers = itertools.count()


class Distributed:
    """What `DistributedOptimizer` adds to an optimizer's class. All other methods are those of that class."""

    _synchronized = False  # by the user, and not stepped since
    _should_synchronize = True

    @property
    def _reducer(self) -> Optional[Reducer]:
        """Who reduces; None where there is nothing to reduce with."""
        adasum.refuse_copy(self, "_lwcc_reducer")
        return self.__dict__["_lwcc_reducer"]  # type: ignore[no-any-return]

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # GradScaler.step asks this before it looks at the gradients: they have to be complete by then
        if self._reducer is not None and self._should_synchronize:
            self._reduce_once()
        return bool(self.__dict__.get("_step_supports_amp_scaling", False))

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Reduce after `passes` backward passes, whose gradients are summed locally; between steps only."""
        reducer = self._reducer
        if passes < 1:
            raise ValueError(f"lwcc: backward_passes_per_step={passes}, must be at least 1")
        if reducer is not None:
            self._refuse_in_flight(reducer, "set_backward_passes_per_step")
            reducer.forget()
            reducer.passes_wanted = passes

    def synchronize(self) -> None:
        """Complete the reduction of all gradients, to clip or inspect them before `step`, which won't reduce again.

        Raises:
            LwccError: a reduction failed (`Mismatch`, `PeerLost`, `Timeout`...); none is pending any more.
            RuntimeError: gradients were changed since backward, while they were reduced, so the ranks' may differ now.
                Changes through `.data`, numpy, or by setting one to None (which is then not stepped) are not seen.
        """
        self._synchronized = True
        if self._reducer is not None:
            changed = [name for bucket in self._reducer._buckets for name in bucket.changed()]
            self._reducer.synchronize()
            if changed:
                raise RuntimeError(
                    f"lwcc: the gradient of {changed[0]} (one of {len(changed)}) was changed after backward(), while "
                    "it was reduced; call synchronize() of the optimizer before you clip, scale or replace gradients"
                )

    def _reduce_once(self) -> None:
        reducer = self._reducer
        if reducer is not None and (reducer.round_open or not self._synchronized):
            self.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within this context `step` does not reduce: after `synchronize`, or to step on local gradients."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Complete the reduction, then do the step of the optimizer's own class; a closure is reduced each time."""
        closure = args[0] if args else kwargs.get("closure")
        if self._reducer is not None:
            self._reducer.refuse_spoilt("step")
        if self._reducer is not None and self._should_synchronize:
            if callable(closure):
                reduced = self._reducing(closure)
                args, kwargs = ((reduced, *args[1:]), kwargs) if args else (args, {**kwargs, "closure": reduced})
            else:
                self._reduce_once()  # PATH 9/9: back in the caller; all gradients are reduced
        self._synchronized = False
        result = super().step(*args, **kwargs)  # type: ignore[misc]
        journal.step()
        return result

    step.hooked = True  # type: ignore[attr-defined]  # torch wraps step for its hooks once: in the optimizer's class

    def _reducing(self, closure: Any) -> Any:
        def reduced() -> Any:
            with torch.enable_grad():
                loss = closure()
            self.synchronize()
            return loss

        return reduced

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clear the gradients, as the optimizer's own class does.

        Gradients that were wholly under way, as those of a discriminator from its generator's loss, are waited for.

        Raises:
            AssertionError: a part of the reductions is in flight.
            LwccError: a reduction that was waited for failed.
        """
        reducer = self._reducer
        if reducer is not None:
            if reducer.spoilt or (reducer.in_flight and reducer.whole):
                reducer.drop()
            self._refuse_in_flight(reducer, "zero_grad")
            if reducer.round_open:
                reducer.forget()
        self._synchronized = False
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    @staticmethod
    def _refuse_in_flight(reducer: Reducer, what: str) -> None:
        if reducer.in_flight:
            raise AssertionError(
                f"lwcc: {what}() between backward() and step(), while gradients are being reduced; call step() or "
                "synchronize() first"
            )


def _named(optimizer: torch.optim.Optimizer, named: Optional[Iterable[tuple[str, Any]]]) -> Named:
    """Return name and parameter by id of the parameter; ValueError if they are no names for all."""
    if named is None:
        return {}
    pairs = list(named)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError(
            "lwcc: named_parameters has to be a sequence of (name, parameter), as model.named_parameters()"
        )
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise ValueError(f"lwcc: named_parameters has the name {name!r} twice")
        seen.add(name)
    found = {id(param): (name, param) for name, param in pairs}
    missing = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in found]
    if missing:
        raise ValueError(
            f"lwcc: named_parameters names {len(found)} parameters, but not {len(missing)} of the optimizer's"
        )
    return found


def _units(optimizer: torch.optim.Optimizer, groups: Groups, named: Named) -> dict[int, int]:
    """Return the group number by id of the parameter, where lists of these are given."""
    if groups is None or isinstance(groups, int):
        if groups is not None and groups < 0:
            raise ValueError(f"lwcc: groups={groups}, must be a number of groups or lists of parameters")
        return {}
    if isinstance(groups, (str, float)) or any(isinstance(group, (str, torch.Tensor)) for group in groups):
        raise ValueError(f"lwcc: groups={groups!r}, must be a number of groups or lists of parameters")
    members = [id(p) for group in groups for p in group]
    if len(set(members)) != len(members):
        raise ValueError("lwcc: groups has a parameter twice")
    if not set(members) <= {id(p) for group in optimizer.param_groups for p in group["params"]} | set(named):
        raise ValueError("lwcc: groups has a tensor that is no parameter of the optimizer")
    return {id(p): i for i, group in enumerate(groups) for p in group}


def _options(
    op: int, compression: type[Compressor], predivide: float, bucket_bytes: Optional[int],
) -> Options:  # fmt: skip
    op = as_op(op)
    if op not in (Op.AVERAGE, Op.SUM, Op.ADASUM):
        raise ValueError(f"lwcc: DistributedOptimizer takes op=Average, Sum or Adasum, not {op.name.title()}")
    if not math.isfinite(predivide) or predivide == 0:
        raise ValueError(f"lwcc: gradient_predivide_factor={predivide!r}: gradients are divided by it")
    if predivide != 1.0 and op != Op.AVERAGE:
        raise ValueError("lwcc: gradient_predivide_factor needs op=Average")
    if not hasattr(compression, "wire_for"):
        raise ValueError("lwcc: DistributedOptimizer takes Compression.none, fp16 or bf16")
    limit = bucket_bytes if bucket_bytes is not None else int(os.environ.get("LWCC_BUCKET_BYTES", LIMIT_BYTES))
    if limit < 1:
        raise ValueError(f"lwcc: buckets of {limit} bytes; LWCC_BUCKET_BYTES and bucket_bytes must be at least 1")
    return Options(Op(op), compression, predivide, bucket_bytes=limit)


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer, named_parameters: Optional[Iterable[tuple[str, Any]]] = None,
    compression: type[Compressor] = Compression.none, backward_passes_per_step: int = 1, op: int = Op.AVERAGE,
    gradient_predivide_factor: float = 1.0, num_groups: int = 0, groups: Groups = None, sparse_as_dense: bool = False,
    process_set: Optional[ProcessSet] = None, *, bucket_bytes: Optional[int] = None,
    algorithm: Optional[Choice] = None,
) -> Any:  # fmt: skip
    """Return an optimizer of a subclass of the given one's class that steps on gradients reduced over the ranks.

    It shares parameter groups and state with the given one, which is not to be used any more. Gradients are reduced in
    buckets while backward goes on; a parameter without gradient on some ranks counts as zero there, one without
    gradient on all ranks has none. After a step the parameters of all ranks have the same bits.

    A parameter may be frozen (`requires_grad` False) or not be the optimizer's on some ranks, at any time: Average
    still divides by all ranks, those count as zero, and there it keeps its gradient, if any, and its value, as in plain
    torch (so norms over all gradients differ between ranks). The ranks tell parameters apart by their names, so all
    have to give the same `named_parameters`, with the frozen ones; or none, and all parameters to the optimizer. Thaw
    or add parameters before a round's first backward.

    Args:
        optimizer: any torch.optim.Optimizer over CPU parameters, also with several groups.
        named_parameters: `model.named_parameters()`: names all parameters of the optimizer.
        compression: `Compression.fp16` and `bf16` halve the bytes of float32 gradients on the wire.
        backward_passes_per_step: gradients of so many backward passes are summed locally, then reduced once.
        op: Average or Sum of the gradients; or Adasum, an adaptive sum of the steps that the ranks would take alone
            (`lwcc_torch.adasum`), where groups, sparse_as_dense and bucket_bytes mean nothing.
        gradient_predivide_factor: Average as a division by this before the sum, and by size / this after it.
        num_groups: deprecated, see `groups`.
        groups: lists of parameters, or a number of groups to make, that are reduced together.
        sparse_as_dense: make sparse gradients dense; else their rows are gathered.
        process_set: the ranks that take part.
        algorithm: what reduces them, see `lwcc.allreduce`; default what the set uses (`lwcc.use`).
        bucket_bytes: size at which a bucket is full; default LWCC_BUCKET_BYTES or 8 MiB. The first is at most 1 MiB.

    Raises:
        ValueError: before init, or a wrong argument.
        Mismatch: from `step` and `synchronize`, where the ranks' parameters differ.
    """
    if isinstance(optimizer, (Distributed, AdasumDistributed)):
        raise ValueError("lwcc: this optimizer is distributed already")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"lwcc: DistributedOptimizer needs a torch.optim.Optimizer, not {type(optimizer).__name__}")
    if num_groups:
        warnings.warn("num_groups is deprecated, use groups", DeprecationWarning, stacklevel=2)
    set_id(process_set)  # refuses what is no process set
    options = _options(op, compression, gradient_predivide_factor, bucket_bytes)
    options = options._replace(sparse_as_dense=sparse_as_dense, process_set=process_set, algorithm=algorithm)
    groups, names = groups if groups is not None else num_groups, _named(optimizer, named_parameters)
    units = _units(optimizer, groups, names)
    options = options._replace(groups=groups if isinstance(groups, int) else 0)
    if op == Op.ADASUM:
        made = adasum.distribute(optimizer, f"opt{next(_numbers)}.adasum", compression, process_set, names)
        made.set_backward_passes_per_step(backward_passes_per_step)
        return made
    kind = type(optimizer)
    wrapped: Any = type(f"Distributed{kind.__name__}", (Distributed, kind), {"__module__": kind.__module__})
    made = wrapped.__new__(wrapped)
    made.__dict__ = optimizer.__dict__  # one state, so that schedulers made for the given one go on working
    made.__dict__.pop("step", None)  # a learning rate scheduler's wrapper around the plain step
    context.world()
    alone = engine.members(process_set) == 1 or engine.my_index(process_set) < 0
    number = next(_numbers)  # also where there is nothing to do, so that the ranks count alike
    made._lwcc_reducer = None if alone else Reducer(f"opt{number}", made, names, units, options)
    made.set_backward_passes_per_step(backward_passes_per_step)
    return made
