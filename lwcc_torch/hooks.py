"""From "this gradient is ready" to "all are reduced": the hooks on the parameters and the rounds of reductions.

A round begins with the first gradient after the last `synchronize` (or with `synchronize` itself) and ends with the
next one. A bucket is submitted when its last gradient arrives, so that it travels while backward goes on.
(`comm_hook` is for the gradients of torch's own DistributedDataParallel instead.)
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable, Optional

import torch

import lwcc
from lwcc import context, errors
from lwcc import ops as core
from lwcc_torch import engine, sparse
from lwcc_torch import tensor as memory
from lwcc_torch.buckets import Bucket, Options, Slot, divide
from lwcc_torch.comm_hook import comm_hook as comm_hook
from lwcc_torch.engine import Call

if TYPE_CHECKING:
    from lwcc.process_sets import ProcessSet

_live: weakref.WeakSet[Reducer] = weakref.WeakSet()
_ending_known = False


class Reducer:
    """Reduces the gradients of one optimizer.

    Args:
        name: unlike those of the other optimizers of this process, like that of the other ranks'.
        optimizer: whose; parameters that appear in its groups later are found.
        names: id of a parameter to its name, for messages.
        units: id of a parameter to the number of its group, for those that shall be reduced together.
        options: how.
    """

    def __init__(
        self, name: str, optimizer: torch.optim.Optimizer, names: Mapping[int, str], units: Mapping[int, int],
        options: Options,
    ) -> None:  # fmt: skip
        self.name, self.names, self.units, self.options = name, names, units, options
        self._optimizer = weakref.ref(optimizer)
        self.passes_wanted = 1
        self.round_open = False
        self.retired = False
        self.spoilt = ""  # what went wrong in a backward; the round's gradients are not to be used
        self._odd = False  # whether an odd number of rounds was dropped
        self._slots: dict[int, Slot] = {}  # by id of the parameter
        self._buckets: list[Bucket] = []
        self._order: Optional[list[int]] = None  # slot numbers as gradients appeared on the first rank, once agreed
        self._arrived: list[int] = []  # the same on this rank, in the first round
        self._announced: Optional[list[core.Ticket]] = None  # the exchange of these
        self._handles: list[Any] = []
        self._adopt_new()
        self._take_over()
        weakref.finalize(self, _remove, self._handles)

    def _take_over(self) -> None:
        """Be the only one for these parameters: retire a reducer of the same ones, refuse a part of another's."""
        mine = set(self._slots)
        for other in list(_live):
            shared = mine & set(other._slots)
            if shared and (shared != mine or len(shared) != len(other._slots)):
                _remove(self._handles)
                raise ValueError(
                    f"lwcc: {len(shared)} of these parameters belong to another DistributedOptimizer; delete it first"
                )
            if shared:
                other.retired = True
                _remove(other._handles)
                other.release()
                _live.discard(other)
        _live.add(self)
        global _ending_known
        if not _ending_known:
            context.at_shutdown(_release_all)
            _ending_known = True

    def _adopt_new(self) -> list[Slot]:
        """Put hooks on parameters that have none yet: at first all, later those of a new group or just unfrozen."""
        fresh = []
        optimizer = self._optimizer()
        for group in optimizer.param_groups if optimizer is not None else []:
            for param in group["params"]:
                if param.requires_grad and id(param) not in self._slots:
                    memory.check(param, "DistributedOptimizer")
                    number = len(self._slots)
                    slot = Slot(param, self.names.get(id(param), f"parameter {number}"), number)
                    self._slots[id(param)] = slot
                    hook = _hook(weakref.ref(self), slot)
                    self._handles.append(param.register_post_accumulate_grad_hook(hook))
                    fresh.append(slot)
        return fresh

    def _form(self, slots: Optional[list[Slot]] = None) -> None:
        """Make the buckets anew, or add some for the given slots."""
        if slots is None:
            self._buckets = []
            slots = list(self._slots.values())[::-1]  # last layers first: a guess until the order is known
            if self._order is not None:
                place = {number: i for i, number in enumerate(self._order)}
                slots.sort(key=lambda slot: place.get(slot.number, len(place)))
        groups = {s.number: self.units[id(s.param)] for s in slots if id(s.param) in self.units}
        for unit in divide(slots, groups, self.options.bucket_bytes):
            self._buckets.append(Bucket(self._label(), len(self._buckets), unit, self.options))

    def _open_round(self) -> None:
        """Begin a round; new parameters and new element types (`model.to`) lead to new buckets."""
        self.round_open = True
        changed = bool(self._adopt_new())
        changed = changed or not self._buckets or any(slot.stale() for slot in self._slots.values())
        if changed or any(bucket.moved() for bucket in self._buckets):
            self._form()

    def gradient_ready(self, slot: Slot) -> None:
        """Take a gradient that backward has just finished; submit its bucket if it was the last one."""
        # PATH 1/9: a gradient is ready; on the thread that runs backward
        if not self.round_open:
            self._open_round()
        bucket, wanted = slot.bucket, self.passes_wanted
        assert bucket is not None
        slot.passes += 1
        if slot.passes > wanted or bucket.ticket is not None:
            self.spoilt = f"a gradient of {slot.name} was computed more than backward_passes_per_step={wanted} times"
            raise AssertionError(
                f"lwcc: {self.spoilt} before step() or synchronize(); raise "
                "backward_passes_per_step to accumulate locally"
            )
        dense = slot.deposit(self.options.sparse_as_dense)
        if slot.passes < wanted:
            return
        if self._order is None:
            self._arrived.append(slot.number)
            if len(self._arrived) == len(self._slots):
                self._announce()
        if not dense:
            bucket.apart.append(slot)
        bucket.left -= 1
        if bucket.left == 0:
            bucket.submit()

    @property
    def in_flight(self) -> bool:
        """Whether a reduction was started that `synchronize` has not finished."""
        return any(bucket.ticket is not None for bucket in self._buckets)

    @property
    def whole(self) -> bool:
        """Whether all reductions of the round were started, so that nothing of it is left to do but to wait."""
        return all(bucket.ticket is not None for bucket in self._buckets)

    def drop(self) -> None:
        """Finish a round whose results nobody wants.

        From then on buckets have another name: those of a rank that did not drop it won't be taken for the same.

        Raises:
            LwccError: as `synchronize`.
        """
        self.spoilt = ""
        try:
            self.synchronize()
        finally:
            self._odd = not self._odd
            for bucket in self._buckets:
                bucket.rename(self._label())

    def _label(self) -> str:
        return f"{self.name}.odd" if self._odd else self.name

    def forget(self) -> None:
        """Drop a round of which nothing is in flight: its gradients are about to be cleared."""
        for bucket in self._buckets:
            bucket.reopen()
        self._arrived, self.round_open = [], False

    def synchronize(self) -> None:
        """Submit what is left, wait for all, put every gradient in its final state.

        Raises:
            LwccError: the first failure, once nothing is in flight; the next round can start.
        """
        if self.retired:
            raise RuntimeError("lwcc: another DistributedOptimizer has taken over the parameters of this one")
        self.refuse_spoilt("synchronize")
        if not self.round_open:
            self._open_round()
        else:
            fresh = self._adopt_new()
            if fresh:
                self._form(fresh)
        failures: list[Exception] = []
        first = self._order is None
        if first and self._announced is None:
            _attempt(self._announce, failures)
        for bucket in self._buckets:
            if bucket.ticket is None:
                _attempt(lambda b=bucket: self._complete(b), failures)  # type: ignore[misc]
        if first and self._announced is not None:
            _attempt(self._agree, failures)
        reduced = [b for b in self._buckets if b.ticket is not None and _attempt(b.finish, failures)]
        if not failures:
            _attempt(lambda: self._settle(reduced, first), failures)
        self.forget()
        self._announced = None
        if failures:
            self._order = None if first else self._order
            raise failures[0]
        if first:
            self._form()

    def refuse_spoilt(self, what: str) -> None:
        """Raise AssertionError if a backward of this round failed: gradients were added while others were reduced."""
        if self.spoilt:
            raise AssertionError(
                f"lwcc: {what}() after a backward that failed: {self.spoilt}, so the ranks' gradients may differ; "
                "call zero_grad() first"
            )

    def _complete(self, bucket: Bucket) -> None:
        """Submit a bucket that did not fill: what is missing takes part as zeros, and says so."""
        bucket.absent, bucket.apart = [], []
        for slot in bucket.slots:
            if slot.param.grad is None:
                bucket.absent.append(slot)
            elif not slot.deposit(self.options.sparse_as_dense):
                bucket.apart.append(slot)
        bucket.submit()

    def _settle(self, buckets: list[Bucket], first: bool) -> None:
        """Set the gradients that this rank had not, and reduce the sparse ones, which all ranks now know of."""
        waits: list[tuple[Slot, Callable[[], torch.Tensor]]] = []
        for bucket in buckets:
            for slot in bucket.absent:
                somewhere = bool(bucket.flags[0, slot.position] != 0)
                slot.param.grad = slot.view() if somewhere and not slot.sparse else None
            if not bool(bucket.flags[1].any()):
                continue
            mine = set(bucket.absent)
            for slot in bucket.slots:
                if bucket.flags[1, slot.position] != 0:
                    own = _as_sparse(slot.param, None if slot in mine else slot.param.grad)
                    name = f"{self.name}.sparse{slot.number}"
                    waits.append((slot, self._start_sparse(own, name)))
        for slot, wait in waits:
            slot.param.grad = wait()
            slot.sparse = slot.sparse or first  # the buckets are formed anew after the first round

    def _start_sparse(self, own: torch.Tensor, name: str) -> Callable[[], torch.Tensor]:
        return sparse.sparse_allreduce_async(own, name, self.options.op, self.options.process_set)

    def _announce(self) -> None:
        """Send the order in which gradients appeared here, led by a digest of the parameters. Does not block."""
        text = "\n".join(slot.describe() for slot in self._slots.values())
        digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")
        call = Call(core.ALLGATHER, f"{self.name}.order", process_set=self.options.process_set)
        self._announced = engine.start([call], [torch.tensor([digest, *self._arrived])])

    def _agree(self) -> None:
        """Take over the first rank's order of arrival, and make sure that the ranks mean the same parameters."""
        assert self._announced is not None
        done = engine.finish(self._announced)[0]
        everybody = [part.tolist() for part in done.output.split(done.splits) if len(part)]  # none from the joined
        if len({digest for digest, *_ in everybody}) > 1:
            raise errors.Mismatch(f"{self.name}: the ranks' optimizers differ: {self._difference()}")
        self._order = everybody[0][1:]

    def _difference(self) -> str:
        """Return in words where the ranks' parameters differ; collective."""
        ranks = self.options.process_set
        root = ((ranks.ranks if ranks is not None else None) or [0])[0]
        mine = [slot.describe() for slot in self._slots.values()]
        expected = lwcc.broadcast_object(mine, root, name=f"{self.name}.layout", process_set=ranks)
        text = ""
        if len(mine) != len(expected):
            text = f"rank {context.rank()}: {len(mine)} parameters here, {len(expected)} on rank {root}"
            for here, there, where in ((mine, expected, "here"), (expected, mine, f"on rank {root}")):
                only = [one for one in here if one not in there]
                text += f"; {only[0]} has requires_grad only {where}" if only else ""
        elif mine != expected:
            here, there = next(pair for pair in zip(mine, expected) if pair[0] != pair[1])
            text = f"rank {context.rank()}: {here} here, {there} on rank {root}"
        texts = lwcc.allgather_object(text, name=f"{self.name}.difference", process_set=ranks)
        return next(filter(None, texts), "")

    def begin_anew(self) -> None:
        """Agree on the order again in the next round: ranks that had joined meanwhile don't know it."""
        for bucket in self._buckets:
            if bucket.ticket is not None:
                bucket.finish()
        self.forget()
        self._buckets, self._order, self._announced, self._odd = [], None, None, False

    def release(self) -> None:
        """Give the registered memory back: the job ends. The next gradient forms new buckets."""
        for slot in self._slots.values():
            slot.leave()
        self._buckets, self._order, self._arrived, self._announced, self.round_open = [], None, [], None, False
        self.spoilt, self._odd = "", False


def joined(process_set: Optional[ProcessSet]) -> None:
    """Tell the optimizers of the set that all its ranks have joined."""
    number = process_set.process_set_id if process_set is not None else 0
    for reducer in list(_live):
        mine = reducer.options.process_set
        if (mine.process_set_id if mine is not None else 0) == number:
            reducer.begin_anew()


def _hook(reference: weakref.ref[Reducer], slot: Slot) -> Callable[[torch.Tensor], None]:
    """Return the hook for one parameter; it does not keep the reducer alive."""

    def gradient_ready(param: torch.Tensor) -> None:
        reducer = reference()
        if reducer is not None:
            reducer.gradient_ready(slot)

    return gradient_ready


def _attempt(action: Callable[[], None], failures: list[Exception]) -> bool:
    """Run the action; note a failure, so that the caller can first end all that it has started."""
    try:
        action()
    except (RuntimeError, ValueError) as error:
        failures.append(error)
        return False
    return True


def _as_sparse(param: torch.Tensor, grad: Optional[torch.Tensor]) -> torch.Tensor:
    """Return a gradient as sparse rows; none at all if there is no gradient."""
    if grad is None:
        rows = torch.zeros((0, *param.shape[1:]), dtype=param.dtype)
        indices = torch.zeros((1, 0), dtype=torch.int64)
        return torch.sparse_coo_tensor(indices, rows, param.shape, check_invariants=True)
    return grad if grad.is_sparse else grad.detach().to_sparse(1)


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()


def _release_all() -> None:
    for reducer in list(_live):
        reducer.release()
