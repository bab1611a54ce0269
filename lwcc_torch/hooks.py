"""From "this gradient is ready" to "all are reduced": the hooks on the parameters and the rounds of reductions.

A round begins with the first gradient after the last `synchronize` (or with `synchronize` itself) and ends with the
next one. A bucket is submitted when its last gradient arrives, so that it travels while backward goes on. Only the
first round has no buckets before its `synchronize`, where the ranks agree on their layout (`layout`).
(`comm_hook` is for the gradients of torch's own DistributedDataParallel instead.)
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable, Optional

import torch

from lwcc import context
from lwcc import ops as core
from lwcc_torch import engine, layout
from lwcc_torch import tensor as memory
from lwcc_torch.buckets import Bucket, Options, Slot, cleared, divide, settle
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
        named: what the ranks know parameters by, also those that are not the optimizer's.
        units: id of a parameter to the number of its group, for those that shall be reduced together.
        options: how.
    """

    def __init__(
        self, name: str, optimizer: torch.optim.Optimizer, named: layout.Named, units: Mapping[int, int],
        options: Options,
    ) -> None:  # fmt: skip
        self.name, self.named, self.units, self.options = name, named, units, options
        self._optimizer = weakref.ref(optimizer)
        self.passes_wanted = 1
        self.round_open = False
        self.retired = False
        self.spoilt = ""  # what went wrong in a backward; the round's gradients are not to be used
        self._odd = False  # whether an odd number of rounds was dropped
        self._slots: dict[int, Slot] = {}  # by id of the parameter: those trained here or, as agreed, elsewhere
        self._news: list[Slot] = []  # trained here, but not agreed on
        self._layout: Optional[tuple[list[core.Ticket], dict[str, torch.Tensor]]] = None  # told; what names mean here
        self._agreed = False  # on the layout
        self._failures: list[Exception] = []  # of that, to be raised by `synchronize`
        self._buckets: list[Bucket] = []
        self._order: Optional[list[int]] = None  # slot numbers as gradients appeared on the first rank, once agreed
        self._arrived: list[Slot] = []  # these on this rank, in the first round
        self._announced: Optional[list[core.Ticket]] = None  # the exchange of these
        self._handles: list[Any] = []
        self._adopt_new()
        self._take_over()
        weakref.finalize(self, _remove, self._handles)

    def _take_over(self) -> None:
        """Be the only one for these parameters: retire a reducer of the same ones, refuse a part of another's."""
        mine = set(self._slots)
        for other in list(_live):
            others = {i for i, slot in other._slots.items() if slot.hooked}
            shared = mine & others
            if shared and not shared == mine == others:
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
        fresh, self._news = [], []
        optimizer = self._optimizer()
        groups = optimizer.param_groups if optimizer is not None else []
        for param in (p for group in groups for p in group["params"] if p.requires_grad):
            slot = self._slots.get(id(param))
            if slot is None or not slot.hooked:
                memory.check(param, "DistributedOptimizer")
                name, _ = self.named.get(id(param), (f"parameter {len(self._slots)}", param))
                slot = self._slots.setdefault(id(param), slot or Slot(param, name))
                slot.hooked = True
                hook = _hook(weakref.ref(self), slot)
                self._handles.append(param.register_post_accumulate_grad_hook(hook))
                fresh.append(slot)
            if slot.number < 0:
                self._news.append(slot)
        return fresh

    def _form(self, slots: Optional[list[Slot]] = None) -> None:
        """Make the buckets anew, or add some for the given slots."""
        if slots is None:
            self._buckets = []
            slots = self._known()[::-1]  # last layers first: a guess until the order is known
            if self._order is not None:
                place = {number: i for i, number in enumerate(self._order)}
                slots.sort(key=lambda slot: place.get(slot.number, len(place)))
        for unit in divide(slots, self.options.bucket_bytes):
            self._buckets.append(Bucket(self._label(), len(self._buckets), unit, self.options))

    def _known(self) -> list[Slot]:
        """Return what the ranks have agreed on, in the order that they have agreed on."""
        return sorted((slot for slot in self._slots.values() if slot.number >= 0), key=lambda slot: slot.number)

    def _open_round(self) -> None:
        """Begin a round; new element types (`model.to`) and moved memory lead to new buckets."""
        self.round_open = True
        self._adopt_new()
        stale = any(slot.number >= 0 and slot.stale() for slot in self._slots.values())
        if self._agreed and (stale or not self._buckets or any(bucket.moved() for bucket in self._buckets)):
            self._form()
        for bucket in self._buckets:
            bucket.open()

    def gradient_ready(self, slot: Slot) -> None:
        """Take a gradient that backward has just finished; submit its bucket if it was the last one."""
        # PATH 1/9: a gradient is ready; on the thread that runs backward
        if not self.round_open:
            self._open_round()
        if slot.passes and cleared(self._slots.values(), slot):
            self._start_over(slot)
        bucket, wanted = slot.bucket, self.passes_wanted
        slot.passes += 1
        if slot.passes > wanted or (bucket is not None and bucket.ticket is not None):
            self.spoilt = f"a gradient of {slot.name} was computed more than backward_passes_per_step={wanted} times"
            raise AssertionError(
                f"lwcc: {self.spoilt} before step() or synchronize(); raise backward_passes_per_step to accumulate "
                "locally, or call zero_grad() of the optimizer to drop what was computed before"
            )
        if self._order is None and slot.passes == wanted:
            self._arrived.append(slot)
        if bucket is not None:
            self._fill(slot, bucket)

    def _start_over(self, slot: Slot) -> None:
        """Drop the round whose gradients `module.zero_grad` has cleared; the slot has the first one of the next."""
        fresh, in_flight = slot.param.grad, self.in_flight
        if in_flight and not self.whole:
            return
        if in_flight:
            self.drop()
            for other in self._slots.values():
                if other.hooked:
                    other.param.grad = None
            slot.param.grad = fresh
        else:
            self.forget()
        self._open_round()

    def _fill(self, slot: Slot, bucket: Bucket) -> None:
        dense = slot.deposit(self.options.sparse_as_dense)
        if slot.passes == self.passes_wanted and bucket.arrived(slot, dense):
            if self.passes_wanted > 1 and not self.in_flight:
                self._adopt_new()  # between the passes
            bucket.submit(bool(self._news))

    @property
    def settled(self) -> bool:
        """Whether there is nothing to agree on before gradients are reduced."""
        return self._agreed or self.retired or bool(self._failures)

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
        for slot in self._slots.values():
            slot.passes = 0
        self._arrived, self.round_open = [], False

    def synchronize(self) -> None:
        """Submit what is left, wait for all, put every gradient in its final state.

        Raises:
            LwccError: the first failure, once nothing is in flight; the next round can start.
        """
        if self.retired:
            raise RuntimeError("lwcc: another DistributedOptimizer has taken over the parameters of this one")
        self._admit()
        agree_on_layouts(self)
        failures, self._failures = self._failures, []
        first, count = self._order is None, len(self._buckets)
        if not failures:
            self._reduce(self._buckets, first, failures)
        if not failures and (not self._buckets or any(bool(bucket.news != 0) for bucket in self._buckets)):
            engine.attempt(self._extend, failures)
            self._reduce(self._buckets[count:], False, failures)
        grown = len(self._buckets) > count
        self.forget()
        if failures:
            self._order = None if first else self._order
            raise failures[0]
        if first or grown:
            self._form()

    def _admit(self) -> None:
        """Open the round if no gradient has; find what became trainable meanwhile."""
        self.refuse_spoilt("synchronize")
        if not self.round_open:
            self._open_round()
            return
        late = [slot.name for slot in self._adopt_new() if slot.number < 0 and slot.param.grad is not None]
        if late and self._buckets and self.whole:
            self.spoilt = f"{late[0]} was added to the optimizer when all others were already being reduced"
            self.refuse_spoilt("synchronize")

    def _reduce(self, buckets: list[Bucket], first: bool, failures: list[Exception]) -> None:
        """Submit the rest of these buckets, and finish all."""
        if first and self._announced is None:
            engine.attempt(self._announce, failures)
        for bucket in buckets:
            if bucket.ticket is None:
                engine.attempt(lambda b=bucket: self._complete(b), failures)  # type: ignore[misc]
        if first and self._announced is not None:
            engine.attempt(self._agree, failures)
        reduced = [b for b in buckets if b.ticket is not None and engine.attempt(b.finish, failures)]
        if not failures:
            engine.attempt(lambda: settle(self.name, reduced, first), failures)
        self._announced = None

    def send_layout(self) -> None:
        """Tell the other ranks of the parameters here, unless they were told. Does not block."""
        if self._layout is None:
            optimizer = self._optimizer()
            found = layout.parameters(optimizer, self.named) if optimizer is not None else {}
            tickets = layout.announce(self.name, found, self.units, self.options.process_set)
            self._layout = tickets, {name: param for name, (param, _) in found.items()}

    def start(self) -> None:
        """Agree on the layout; make the buckets, and submit what is there, as far as it does not need to wait."""
        if engine.attempt(self._take_layout, self._failures):
            self._form()
            if self._announced is None:
                engine.attempt(self._announce, self._failures)
            for slot in self._arrived:
                if slot.bucket is not None:
                    self._fill(slot, slot.bucket)

    def _extend(self) -> None:
        """Agree on what a rank has begun to train; make buckets for it."""
        self.send_layout()
        self._form(self._take_layout())

    def _take_layout(self) -> list[Slot]:
        """Wait for the other ranks' parameters; return the slots, perhaps new ones, of what was not agreed on yet."""
        assert self._layout is not None
        (tickets, params), self._layout = self._layout, None
        known, fresh = {slot.name for slot in self._known()}, list[Slot]()
        for name, unit in layout.agree(self.name, tickets):
            if name not in known:
                slot = self._slots.setdefault(id(params[name]), Slot(params[name], name))
                slot.name, slot.unit, slot.number = name, unit, len(known) + len(fresh)
                fresh.append(slot)
        for slot in self._known() if self.options.groups else []:
            slot.unit = slot.number * self.options.groups // (len(known) + len(fresh))
        self._agreed, self._news = True, [slot for slot in self._news if slot.number < 0]
        return fresh

    def refuse_spoilt(self, what: str) -> None:
        """Raise AssertionError if a backward of this round failed: gradients were added while others were reduced."""
        if self.spoilt:
            raise AssertionError(
                f"lwcc: {what}() after a backward that failed: {self.spoilt}, so the ranks' gradients may differ; "
                "call zero_grad() first"
            )

    def _complete(self, bucket: Bucket) -> None:
        """Submit a bucket that did not fill."""
        bucket.collect(self.options.sparse_as_dense)
        bucket.submit(bool(self._news))

    def _announce(self) -> None:
        """Send the order in which gradients appeared here, after their number. Does not block."""
        order = [slot.number for slot in self._arrived if slot.number >= 0]
        call = Call(core.ALLGATHER, f"{self.name}.order", process_set=self.options.process_set)
        self._announced = engine.start([call], [torch.tensor([len(order), *order])])

    def _agree(self) -> None:
        """Take over the order of arrival of the first rank that has seen most."""
        assert self._announced is not None
        done = engine.finish(self._announced)[0]
        everybody = [part.tolist() for part in done.output.split(done.splits) if len(part)]  # none from the joined
        self._order = max(everybody, key=len)[1:]

    def begin_anew(self) -> None:
        """Agree on layout and order again in the next round: ranks that had joined meanwhile don't know them."""
        for bucket in self._buckets:
            if bucket.ticket is not None:
                bucket.finish()
        if self._layout is not None:
            engine.finish(self._layout[0])
        self.forget()
        self._unlearn()

    def _unlearn(self) -> None:
        """Forget what the ranks have agreed on."""
        for slot in self._slots.values():
            slot.leave()
            slot.number = -1
        self._buckets, self._order, self._announced, self._odd = [], None, None, False
        self._layout, self._agreed, self._failures = None, False, []

    def release(self) -> None:
        """Give the registered memory back: the job ends. The next gradient forms new buckets."""
        self._unlearn()
        self._arrived, self.round_open, self.spoilt = [], False, ""


def agree_on_layouts(current: Reducer) -> None:
    """Agree on the layouts of the given reducer and of all whose gradients wait for that, and submit these.

    All, and before any is waited for: the ranks may step their optimizers in different orders.
    """
    waiting = [reducer for reducer in list(_live) if not reducer.settled]
    for reducer in waiting:
        engine.attempt(reducer.send_layout, reducer._failures)
    for reducer in waiting:
        if (reducer is current or reducer.round_open) and not reducer.settled:
            reducer.start()


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


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()


def _release_all() -> None:
    for reducer in list(_live):
        reducer.release()
