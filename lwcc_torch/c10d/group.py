"""The process group "lwcc": every collective of torch.distributed on CPU tensors.

What the core has no collective for (send and receive, bitwise reductions, sparse tensors) goes to a gloo backend that
each group has beside it; it opens no connection before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Optional

import torch
import torch.distributed as dist

from lwcc import errors
from lwcc import ops as core
from lwcc.ops import Op
from lwcc_torch.c10d import calls, gloo, notices, world
from lwcc_torch.c10d.barrier import MonitoredBarrier
from lwcc_torch.c10d.calls import Tensors
from lwcc_torch.c10d.exchange import Exchange
from lwcc_torch.c10d.opaque import opaque
from lwcc_torch.c10d.pieces import Piece, Settle, joined, piece, place, same_kind, scratch, spread
from lwcc_torch.c10d.requests import Requests, Wanted
from lwcc_torch.c10d.work import Completer, LwccWork

if TYPE_CHECKING:
    from lwcc.authoring import Choice

_LABEL_LIMIT = 300


def create(options: Any, backend_options: Any) -> LwccGroup:
    """Make a group; what torch calls. Collective over its members."""
    notices.keep()
    return LwccGroup(options)


_ProcessGroup: Any = dist.ProcessGroup  # its overloads would have to be repeated here


@opaque
class LwccGroup(_ProcessGroup):  # type: ignore[misc]
    """A process group over the core. Users get it from `init_process_group("lwcc")` and `new_group`.

    The methods are those of torch's ProcessGroup; each starts a collective and returns its work.
    """

    is_lwcc = True

    def __init__(self, options: Any) -> None:
        super().__init__(options.group_rank, options.group_size)
        self._store = options.store
        self._timeout: timedelta = options.timeout
        self._members = world.enter(options, self._timeout.total_seconds())
        self._index, self._count = options.group_rank, options.group_size
        self._requests = Requests(f"c10d.{options.group_id[:_LABEL_LIMIT]}", self._members.set_id)
        self._completer = Completer()
        self._barrier = MonitoredBarrier(options.store, self._members.ranks, self._index)
        self._gloo = gloo.backend(options)
        self._lines = [gloo.Line() for _ in range(self._count)]
        self._alive = True
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self._gloo)
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)

    # ---- what torch asks of a group ----

    def getBackendName(self) -> str:
        """Return "lwcc"."""
        return "lwcc"

    def name(self) -> str:
        """Return "lwcc"."""
        return "lwcc"

    def get_group_store(self) -> Any:
        """Return the store of the group alone."""
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        """Let calls take so long from now on."""
        self._timeout = timeout

    def shutdown(self) -> None:
        """Leave the group; the job ends with its last group."""
        if self._alive:
            self._alive = False
            self._completer.end()
            self._gloo.shutdown()
            world.leave()

    def abort(self) -> None:
        """As `shutdown`; what is pending fails."""
        self.shutdown()

    # ---- starting ----

    def _start(
        self, wanted: Sequence[Wanted], keep: Any, outputs: Any, options: Any, *, timeout: Optional[timedelta] = None,
        settles: Sequence[Settle] = (), finish: Any = None,
    ) -> LwccWork:  # fmt: skip
        if not self._alive:
            raise errors.ShutDown("lwcc: this process group was destroyed")
        tickets = self._requests.submit(wanted, keep, finish or _nothing)

        def settle() -> None:
            for one in settles:
                one()

        work = LwccWork(tickets, outputs, calls.allowed(options, timeout, self._timeout), settle)
        work.completer = self._completer
        return work

    # ---- reductions ----

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Optional[timedelta] = None) -> Any:
        """Reduce the tensor in place."""
        tensor, kind = calls.one(tensors, "all_reduce"), calls.reduction(opts)
        if _for_gloo(kind, [tensor]):
            options = gloo.as_options(dist.AllreduceOptions, opts)
            return gloo.run(lambda: self._gloo.allreduce([tensor], options))
        return self._reduce_in_place([tensor], "all_reduce", kind, opts, timeout=timeout)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        """Reduce each tensor in place."""
        kind = calls.reduction(opts)
        if _for_gloo(kind, tensors):
            options = gloo.as_options(dist.AllreduceCoalescedOptions, opts)
            return gloo.run(lambda: self._gloo.allreduce_coalesced(tensors, options))
        return self._reduce_in_place(tensors, "all_reduce_coalesced", kind, opts)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Optional[timedelta] = None) -> Any:
        """Reduce the tensor in place on the root; those of the other ranks stay."""
        tensor, kind = calls.one(tensors, "reduce"), calls.reduction(opts if op is None else op)
        if _for_gloo(kind, [tensor]):
            return gloo.run(lambda: self._gloo.reduce([tensor], opts))
        index = calls.root(opts, self._count)
        root = self._members.ranks[index]  # only compared with the other ranks': all of them get the sum
        if index == self._index:
            return self._reduce_in_place([tensor], "reduce", kind, opts, timeout=timeout, root=root)
        source = piece(tensor, "reduce", moved=False)
        target = scratch(source, source.length)
        wanted = _reducing(source, target, kind, root)
        return self._start([wanted], (source, target), [tensor], opts, timeout=timeout)

    def _reduce_in_place(
        self, tensors: Tensors, what: str, kind: calls.Reduction, opts: Any, *, timeout: Optional[timedelta] = None,
        root: int = 0,
    ) -> LwccWork:  # fmt: skip
        wanted, keep, settles = [], [], []
        for tensor in tensors:
            target, after = place(tensor, what, moved=False)
            wanted.append(_reducing(target, target, kind, root))
            keep.append(target)
            settles += after
        return self._start(wanted, keep, list(tensors), opts, timeout=timeout, settles=settles)

    def reduce_by(self, tensor: torch.Tensor, op: Op, algorithm: Optional[Choice]) -> LwccWork:
        """Reduce the tensor in place by an algorithm: beside torch's methods, for `comm_hook`."""
        target = piece(tensor, "all_reduce", moved=False)
        wanted = _reducing(target, target, calls.Reduction(op))._replace(algorithm=algorithm)
        return self._start([wanted], target, [tensor], None)

    def _reduce_scatter_base(self, output: Any, input: Any, opts: Any = None) -> Any:
        """Reduce `input`, of as many parts as there are ranks, and leave this rank's part in `output`."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Optional[timedelta] = None
    ) -> LwccWork:
        """Reduce each of the input tensors; this rank's goes to the output."""
        output = calls.one(outputs, "reduce_scatter")
        parts = calls.one_list(inputs, "reduce_scatter")
        same_kind(parts, output, "reduce_scatter: the inputs", output.numel())
        return self._scatter_reduced([(output, parts)], opts, timeout)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> LwccWork:
        """Do `reduce_scatter_single` for each pair of tensors."""
        for output, whole in zip(outputs, inputs):
            same_kind([whole], output, "reduce_scatter: the input", output.numel() * self._count)
        return self._scatter_reduced([(output, [whole]) for output, whole in zip(outputs, inputs)], opts, None)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _scatter_reduced(
        self, pairs: Sequence[tuple[torch.Tensor, Tensors]], opts: Any, timeout: Optional[timedelta]
    ) -> LwccWork:
        kind = calls.reduction(opts)
        if kind.op is None:
            raise ValueError("lwcc: reduce_scatter knows sum, avg, product, min, max and premul_sum")
        wanted, keep, settles = [], [], []
        for output, parts in pairs:
            source = joined(parts, "reduce_scatter", moved=False)
            target, after = place(output, "reduce_scatter", moved=False)
            shape = (self._count, target.length)
            wanted.append(
                Wanted(
                    core.REDUCESCATTER, source.pointer, target.pointer, shape, source.code, kind.op, 0, kind.prescale
                )
            )
            keep.append((source, target))
            settles += after
        return self._start(wanted, keep, [output for output, _ in pairs], opts, timeout=timeout, settles=settles)

    # ---- one to all, all to all ----

    def broadcast(self, tensors: Any, opts: Any = 0, timeout: Optional[timedelta] = None) -> LwccWork:
        """Overwrite the tensors with those of the root."""
        wanted, keep, settles = [], [], []
        index = calls.root(opts, self._count)
        root = self._members.ranks[index]
        for tensor in calls.as_list(tensors):
            target, after = place(tensor, "broadcast")
            wanted.append(
                Wanted(core.BROADCAST, target.pointer, target.pointer, (target.length,), target.code, root=root)
            )
            keep.append(target)
            settles += after if index != self._index else []
        return self._start(wanted, keep, calls.as_list(tensors), opts, timeout=timeout, settles=settles)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Optional[timedelta] = None) -> LwccWork:
        """Gather the tensors of all ranks, which have one size, into the list."""
        parts = calls.one_list(outputs, "all_gather")
        return self._gather_all([(parts, calls.one(inputs, "all_gather"))], outputs, opts, timeout)

    def allgather_coalesced(self, outputs: Any, inputs: Tensors, opts: Any = None) -> LwccWork:
        """Do `allgather` for each input; `outputs` has a list of tensors for each."""
        return self._gather_all(list(zip(outputs, inputs)), outputs, opts, None)

    def _allgather_base(self, output: Any, input: Any, opts: Any = None) -> LwccWork:
        """Gather the tensors of all ranks one behind the other in `output`."""
        return self.all_gather_single_coalesced([output], [input], opts)

    all_gather_single = _allgather_base

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> LwccWork:
        """Do `all_gather_single` for each pair of tensors."""
        return self._gather_all([([output], own) for output, own in zip(outputs, inputs)], outputs, opts, None)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _gather_all(
        self, pairs: Sequence[tuple[Tensors, torch.Tensor]], outputs: Any, opts: Any, timeout: Optional[timedelta]
    ) -> LwccWork:
        """Gather each input into one output for all ranks, or a list with one for each."""
        wanted, keep, settles = [], [], []
        for parts, own in pairs:
            source = piece(own, "all_gather")
            after: list[Settle]
            if len(parts) == 1:
                same_kind(parts, own, "all_gather: the output", own.numel() * self._count)
                target, after = place(parts[0], "all_gather")
            else:
                _one_for_each(parts, self._count, own, "all_gather")
                target = scratch(source, self._count * source.length)
                after = [_spreading(parts, target)]
            wanted.append(Wanted(core.ALLGATHER, source.pointer, target.pointer, (1, source.length), source.code))
            keep.append((source, target))
            settles += after
        return self._start(wanted, keep, outputs, opts, timeout=timeout, settles=settles)

    # ---- each to each ----

    def all_to_all_single(
        self, output: Any, input: Any, output_splits: Any = (), input_splits: Any = (), opts: Any = None
    ) -> LwccWork:
        """Deal out the rows of `input`, the i-th part to rank i; `output` gets the parts in the order of the ranks."""
        same_kind([output], input, "all_to_all_single: the output")
        sent = _rows(input, input_splits, self._count, "all_to_all_single: the input")
        expected = _rows(output, output_splits, self._count, "all_to_all_single: the output")
        exchange = Exchange("all_to_all_single", piece(input, "all_to_all_single"), sent, expected, outputs=[output])
        return self._exchange(exchange, [output], opts, None)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None, timeout: Optional[timedelta] = None) -> Any:
        """Send the i-th input to rank i; the i-th output comes from rank i."""
        for tensors in (outputs, inputs):
            _one_for_each(tensors, self._count, None, "all_to_all")
            same_kind(tensors, inputs[0], "all_to_all")
        sent, expected = [t.numel() for t in inputs], [t.numel() for t in outputs]
        exchange = Exchange("all_to_all", joined(inputs, "all_to_all"), sent, expected, outputs=outputs)
        return self._exchange(exchange, outputs, opts, timeout)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Optional[timedelta] = None) -> LwccWork:
        """Gather the tensors of all ranks, which have one size, into the root's list."""
        own, root = calls.one(inputs, "gather"), calls.root(opts, self._count)
        sent = [own.numel() if i == root else 0 for i in range(self._count)]
        parts: Tensors = []
        if root == self._index:
            parts = calls.one_list(outputs, "gather")
            _one_for_each(parts, self._count, own, "gather")
        expected = [t.numel() for t in parts] or [0] * self._count
        exchange = Exchange("gather", piece(own, "gather"), sent, expected, outputs=parts, part=own.numel())
        return self._exchange(exchange, outputs, opts, timeout)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Optional[timedelta] = None) -> LwccWork:
        """Send the i-th tensor of the root's list to rank i."""
        output, root = calls.one(outputs, "scatter"), calls.root(opts, self._count)
        parts = [output.new_empty(0)]
        sent = [0] * self._count
        if root == self._index:
            parts = calls.one_list(inputs, "scatter")
            _one_for_each(parts, self._count, output, "scatter")
            sent = [output.numel()] * self._count
        expected = [output.numel() if i == root else 0 for i in range(self._count)]
        exchange = Exchange("scatter", joined(parts, "scatter"), sent, expected, outputs=[output], part=output.numel())
        return self._exchange(exchange, [output], opts, timeout)

    def _exchange(self, exchange: Exchange, outputs: Any, opts: Any, timeout: Optional[timedelta]) -> LwccWork:
        return self._start(
            [exchange.request()], exchange.source, outputs, opts,
            timeout=timeout, settles=[exchange.settle], finish=exchange.take,
        )  # fmt: skip

    # ---- waiting for one another ----

    def barrier(self, opts: Any = None, timeout: Optional[timedelta] = None) -> LwccWork:
        """Complete when all ranks have come."""
        return self._start([Wanted(core.BARRIER, 0, 0, (), 0)], None, [], opts, timeout=timeout)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Return when all ranks have come; else raise an error that names those that did not."""
        limit = timedelta(seconds=timeout) if isinstance(timeout, (int, float)) else timeout or self._timeout
        self._barrier.pass_or_raise(limit, wait_all_ranks)

    # ---- by gloo ----

    def send(self, tensors: Tensors, dst: int, tag: int) -> Any:
        """Send the tensor to a rank."""
        line = self._lines[calls.member(dst, self._count, "destination rank")]
        return line.run(lambda: self._gloo.send(tensors, dst, tag))

    def recv(self, tensors: Tensors, src: int, tag: int) -> Any:
        """Receive a tensor from a rank."""
        line = self._lines[calls.member(src, self._count, "source rank")]
        return line.run(lambda: self._gloo.recv(tensors, src, tag))

    def recv_anysource(self, tensors: Tensors, tag: int) -> Any:
        """Receive a tensor from whichever rank sends."""
        return gloo.run(lambda: self._gloo.recv_anysource(tensors, tag))


def _for_gloo(kind: calls.Reduction, tensors: Tensors) -> bool:
    return kind.op is None or any(t.layout is not torch.strided for t in tensors)


def _reducing(source: Piece, target: Piece, kind: calls.Reduction, root: int = 0) -> Wanted:
    assert kind.op is not None
    return Wanted(
        core.ALLREDUCE, source.pointer, target.pointer, (source.length,), source.code, kind.op, root, kind.prescale
    )


def _spreading(parts: Tensors, target: Piece) -> Settle:
    return lambda: spread(parts, target.data)


def _rows(tensor: torch.Tensor, splits: Sequence[int], ranks: int, what: str) -> list[int]:
    """Return the elements of a tensor that belong to each rank; `splits` are rows, none: equal parts."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits and rows % ranks:
        raise ValueError(f"lwcc: {what} has {rows} rows, which {ranks} ranks cannot share equally; give split sizes")
    parts = list(splits) or [rows // ranks] * ranks
    if len(parts) != ranks or sum(parts) != rows:
        raise ValueError(f"lwcc: {what} has {rows} rows for {ranks} ranks, but the split sizes are {parts}")
    row = tensor.numel() // rows if rows else 0
    return [n * row for n in parts]


def _one_for_each(tensors: Tensors, ranks: int, like: Optional[torch.Tensor], what: str) -> None:
    """Refuse a list that has not one tensor for each rank; if `like` is given, of its type and size."""
    if len(tensors) != ranks:
        raise ValueError(f"lwcc: {what} needs a tensor for each of the {ranks} ranks, not {len(tensors)}")
    if like is not None:
        same_kind(tensors, like, what, like.numel())


def _nothing(ticket: int) -> None:
    """Make no value of a ticket: its results are where they belong."""
