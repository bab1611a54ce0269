"""Gradients' home: buckets of registered memory, each reduced in place by one allreduce.

A bucket holds a view for each of its parameters, which becomes the parameter's `.grad`, and at its end two flags per
parameter that are reduced with the data: "I have a gradient" and "mine is sparse". A parameter whose first flags sum
to zero had no gradient on any rank, and gets none, as in a single process; sparse gradients are reduced apart. A last
flag says "I train a parameter that the ranks have not agreed on", whereupon they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Optional

import torch

from lwcc import ops as core
from lwcc.collectives import set_id
from lwcc.ops import Op
from lwcc_torch import sparse
from lwcc_torch import tensor as memory
from lwcc_torch.compression import Compression, Compressor

if TYPE_CHECKING:
    from lwcc.authoring import Choice
    from lwcc.process_sets import ProcessSet

FIRST_BYTES = 1 << 20  # the first bucket is small, so that the wire starts early
LIMIT_BYTES = 8 << 20
_LINE = 64  # bytes; views start on cache lines


class Options(NamedTuple):
    """How the gradients of one optimizer are reduced."""

    op: Op = Op.AVERAGE
    compression: type[Compressor] = Compression.none
    predivide: float = 1.0
    sparse_as_dense: bool = False
    process_set: Optional[ProcessSet] = None
    bucket_bytes: int = LIMIT_BYTES
    algorithm: Optional[Choice] = None
    groups: int = 0  # so many groups of parameters are to be made, if any


class Slot:
    """One parameter and its place in a bucket."""

    __slots__ = (
        "_kind", "_view", "address", "bucket", "hooked", "name", "number", "param", "passes", "position", "sparse",
        "unit",
    )  # fmt: skip

    def __init__(self, param: torch.Tensor, name: str) -> None:
        self.param, self.name = param, name
        self.number = -1  # among those that the ranks have agreed to reduce, if it is one
        self.unit = -1  # its group of parameters
        self.hooked = False  # whether this rank's optimizer has it, trainable at least once
        self._kind = self._look()  # when the buckets were formed
        self.sparse = False  # known to have sparse gradients: no room in the bucket
        self.bucket: Optional[Bucket] = None
        self.position = 0  # of its flags in the bucket
        self.address = 0  # of its view; 0 without one
        self.passes = 0  # backward passes since the last reduction
        self._view: Optional[torch.Tensor] = None

    def _look(self) -> tuple[object, ...]:
        return self.param.dtype, self.param.shape, self.param.stride()

    def stale(self) -> bool:
        """Tell whether the parameter has changed since its place was made for it, as `module.to` does."""
        return self._look() != self._kind

    @property
    def silent(self) -> bool:
        """Whether it is not trained here (now): this rank takes part with zeros, and its gradient is left alone."""
        return not (self.hooked and self.param.requires_grad)

    @property
    def missing(self) -> bool:
        """Whether there is no gradient of this round to bring in."""
        return self.param.grad is None or (self.passes == 0 and self.silent)

    @property
    def nbytes(self) -> int:
        """The size of the gradient in the bucket."""
        return 0 if self.sparse else self.param.numel() * self.param.element_size()

    def place(self, bucket: Bucket, position: int) -> None:
        """Take a place in a bucket: the `position`-th pair of flags, and its part of the data."""
        self.bucket, self.position, self._kind = bucket, position, self._look()
        self._view, self.address = None, 0
        if not self.sparse:
            self._view = self._look_into(bucket.part(self))
            self.address = self._view.data_ptr()

    def leave(self) -> None:
        """Give the place up; a gradient that lives there, or in an earlier bucket, moves to plain memory."""
        grad = self.param.grad
        if grad is not None and self.bucket is not None and self.hooked:
            self.param.grad = grad.detach().clone()
        self.bucket, self._view, self.address, self.passes = None, None, 0, 0

    def save(self) -> None:
        """Move a gradient that lives in the bucket to plain memory."""
        grad = self.param.grad
        if grad is not None and grad.layout is torch.strided and grad.data_ptr() == self.address:
            self.param.grad = grad.detach().clone()

    def view(self) -> torch.Tensor:
        """Return the view in the bucket; made anew if the old one was pointed elsewhere (`grad.data = ...`)."""
        assert self._view is not None and self.bucket is not None
        if self._view.data_ptr() != self.address:
            self._view = self._look_into(self.bucket.part(self))
        return self._view

    def _look_into(self, part: torch.Tensor) -> torch.Tensor:
        return part.view(self.param.dtype).as_strided(self.param.shape, memory.dense_strides(self.param))

    def deposit(self, densify: bool) -> bool:
        """Bring the parameter's gradient into the view; return False if it is one to be reduced apart, as sparse."""
        grad = self.param.grad
        if self.sparse or grad is None:
            return False
        if grad.layout is not torch.strided:
            if not densify:
                return False
            grad = grad.to_dense()
        elif grad.data_ptr() == self.address:
            return True
        view = self.view()
        view.copy_(grad.detach())
        self.param.grad = view
        return True


class Bucket:
    """Gradients of one element type that are reduced together."""

    def __init__(self, name: str, number: int, slots: list[Slot], options: Options) -> None:
        real = slots[0].param.dtype.to_real()
        line = _LINE // real.itemsize
        sizes = [(slot.nbytes // real.itemsize + line - 1) // line * line for slot in slots]
        count = sum(sizes)
        self.slots, self.options, self.number = slots, options, number
        self.flat = memory.registered(count + 2 * len(slots) + 1, real)
        self.rename(name)
        self.flags = self.flat[count:-1].view(2, len(slots))  # [0]: has a gradient; [1]: a sparse one
        self.news = self.flat[-1:]  # trains a parameter that is in no bucket yet
        wire = options.compression.wire_for(real)
        self.wire = None if wire is None else memory.registered(self.flat.numel(), wire)
        self.ticket: Optional[core.Ticket] = None
        self._version = 0  # torch's count of changes of the data, at the submission
        self.left = 0  # gradients still to come
        self.silent: list[Slot] = []  # from which none is expected
        self.absent: list[Slot] = []  # without a gradient on this rank
        self.apart: list[Slot] = []  # with one that is reduced apart
        self._begins = [sum(sizes[:i]) for i in range(len(sizes))]
        self._address = self.flat.data_ptr()
        for position, slot in enumerate(slots):
            slot.place(self, position)
        self.open()

    def open(self) -> None:
        """Begin a round."""
        self.absent, self.apart = [], []
        self.silent = [slot for slot in self.slots if slot.silent]
        self.left = len(self.slots) - len(self.silent)

    def arrived(self, slot: Slot, dense: bool) -> bool:
        """Take note of a gradient that was brought in; tell whether it was the last one."""
        if slot.param.grad is None:  # a hook of the user's has taken it: as if it had not come
            return False
        if not dense:
            self.apart.append(slot)
        if slot in self.silent:  # made trainable in the middle of the round
            self.silent.remove(slot)
        else:
            self.left -= 1
        self.absent = list(self.silent)
        return self.left == 0 and all(one.silent for one in self.silent)

    def collect(self, densify: bool) -> None:
        """Bring in what there is, where gradients are missing: these take part as zeros, and say so."""
        self.absent = [slot for slot in self.slots if slot.missing]
        there = [slot for slot in self.slots if not slot.missing]
        self.apart = [slot for slot in there if not slot.deposit(densify)]

    def rename(self, name: str) -> None:
        """Let its reductions be those of buckets whose optimizer is called so on the other ranks."""
        self.name = f"{name}.bucket{self.number}.{str(self.flat.dtype)[6:]}"

    def part(self, slot: Slot) -> torch.Tensor:
        """Return the elements that belong to one of the slots."""
        begin = self._begins[slot.position]
        return self.flat[begin : begin + slot.nbytes // self.flat.element_size()]

    def moved(self) -> bool:
        """Tell whether torch has taken the data out of the registered memory, as `module.share_memory` does."""
        return self.flat.data_ptr() != self._address

    def submit(self, news: bool) -> None:
        """Start the reduction; the gradients are in place, and `absent` and `apart` are known."""
        self.news.fill_(news)
        self.flags[0].fill_(1)
        self.flags[1].zero_()
        for slot in self.absent:
            self.flags[0, slot.position] = 0
            slot.save()
        for slot in self.apart:
            self.flags[1, slot.position] = 1
        for slot in (*self.absent, *self.apart):
            if not slot.sparse:
                slot.view().zero_()
        o, data, op, post = self.options, self.flat, self.options.op, self.options.predivide
        if self.wire is not None:
            data, op, post = self.wire.copy_(self.flat), Op.SUM, 1.0
        pointer, shape, code = memory.region(data)
        ticket = core.submit_pointer(
            self.name, core.ALLREDUCE, pointer, pointer, shape, code, int(op), process_set=set_id(o.process_set),
            prescale=1.0 / o.predivide, postscale=post, priority=self.number,
            algorithm=o.algorithm,
        )  # fmt: skip
        self.ticket = core.Ticket(ticket, self.name, data, _contributors if self.wire is not None else _nothing)
        self._version = self.flat._version

    def finish(self) -> None:
        """Wait for the reduction; raises what went wrong with it. The bucket is ready for the next round then."""
        ticket, self.ticket = self.ticket, None
        assert ticket is not None
        contributors = ticket.wait()
        if self.wire is not None:  # averaging comes after widening, so that it loses nothing
            ranks = contributors if self.options.op == Op.AVERAGE else 1
            self.flat.copy_(self.wire).mul_(self.options.predivide / ranks)

    def changed(self) -> list[str]:
        """Return the names of parameters whose gradients, being under way, may have been written to or replaced.

        Each rank would go on with its own: written to before the reduction, after it, or amid.
        """
        if self.ticket is None:
            return []
        elsewhere = {slot.number for slot in (*self.absent, *self.apart)}
        here = [slot for slot in self.slots if slot.number not in elsewhere]
        replaced = [s for s in here if s.param.grad is not None and s.param.grad.data_ptr() != s.address]
        return [slot.name for slot in (replaced if self.flat._version == self._version else here)]


def _contributors(ticket: int) -> int:
    return core.result(ticket).contributors


def _nothing(ticket: int) -> None:
    return None


def settle(name: str, buckets: list[Bucket], first: bool) -> None:
    """Set the gradients that this rank had not, and reduce the sparse ones, which all ranks now know of."""
    waits: list[tuple[Slot, bool, Callable[[], torch.Tensor]]] = []
    for bucket in buckets:
        mine = set(bucket.absent)
        for slot in bucket.absent:
            somewhere = bool(bucket.flags[0, slot.position] != 0)
            if not slot.silent:
                slot.param.grad = slot.view() if somewhere and not slot.sparse else None
        if not bool(bucket.flags[1].any()):
            continue
        for slot in bucket.slots:
            if bucket.flags[1, slot.position] != 0:
                own = sparse.as_rows(slot.param, None if slot in mine else slot.param.grad)
                o = bucket.options
                started = sparse.sparse_allreduce_async(own, f"{name}.sparse{slot.number}", o.op, o.process_set)
                waits.append((slot, slot in mine and slot.silent, started))
    for slot, alone, wait in waits:
        reduced = wait()
        slot.param.grad = slot.param.grad if alone else reduced
        slot.sparse = slot.sparse or first  # the buckets are formed anew after the first round


def cleared(slots: Iterable[Slot], fresh: Slot) -> bool:
    """Tell whether all gradients of the round are gone, but for one that backward has just made anew."""
    found = False
    for slot in slots:
        if slot.passes and slot is not fresh:
            if slot.param.grad is not None:
                return False
            found = True
    return found


def divide(slots: Iterable[Slot], limit: int) -> list[list[Slot]]:
    """Cut the slots, in the order in which their gradients are expected, into buckets.

    Args:
        slots: all of them; those of a unit stay together.
        limit: bytes after which a bucket is closed.
    """
    units: dict[tuple[object, ...], list[Slot]] = {}
    for slot in slots:
        dtype = slot.param.dtype
        key = (dtype, "group", slot.unit) if slot.unit >= 0 else (dtype, "alone", slot.number)
        units.setdefault(key, []).append(slot)
    closed: list[list[Slot]] = []
    filling: dict[torch.dtype, list[Slot]] = {}
    for unit in units.values():
        dtype = unit[0].param.dtype.to_real()
        bucket = filling.setdefault(dtype, [])
        bucket += unit
        if sum(slot.nbytes for slot in bucket) >= (limit if closed else min(limit, FIRST_BYTES)):
            closed.append(filling.pop(dtype))
    return closed + list(filling.values())
