"""Submitting named requests by pointer, and their tickets: what the adapters and `lwcc.collectives` stand on.

The contract of the adapters (stable):

    ticket = submit_pointer(name, collective, ptr_in, ptr_out, shape, dtype, op, ...)   -> int, never blocks on peers
    tickets = submit_group([Request(...), ...])                     -> one unit: run together, or all failed
    poll(ticket) -> bool                                            done? (failed counts as done)
    wait(ticket, timeout=None) -> None                              raises what went wrong; the ticket stays valid
    result(ticket) -> Result                                        output's address, size, first dimension, splits
    take_buffer(ticket) -> buffer                                   the library's output becomes yours
    release(ticket) -> None                                         exactly once per ticket, pending or done

`ptr_in` and `ptr_out` are addresses as int. The memory has to be contiguous and to live until the ticket is done;
nobody here keeps it alive. `ptr_out` may equal `ptr_in`; 0 where the size is known late (allgather, alltoall,
reducescatter): the library allocates, see `take_buffer`. `shape` is the input's. A ticket does not outlive `shutdown`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

from lwcc import context
from lwcc._native import ffi, lib
from lwcc.naming import COLLECTIVE_NAMES as COLLECTIVE_NAMES
from lwcc.naming import unnamed as unnamed
from lwcc.operation import Adasum as Adasum
from lwcc.operation import Average as Average
from lwcc.operation import Max as Max
from lwcc.operation import Min as Min
from lwcc.operation import Op as Op
from lwcc.operation import Product as Product
from lwcc.operation import Sum as Sum
from lwcc.operation import as_op as as_op
from lwcc.operation import reduction as reduction
from lwcc.request import Request as Request
from lwcc.request import c_name, fill
from lwcc.request import whole as whole

if TYPE_CHECKING:
    from lwcc.authoring import Choice


ALLREDUCE: int = lib.LWCC_ALLREDUCE
BROADCAST: int = lib.LWCC_BROADCAST
ALLGATHER: int = lib.LWCC_ALLGATHER
REDUCESCATTER: int = lib.LWCC_REDUCESCATTER
ALLTOALL: int = lib.LWCC_ALLTOALL
BARRIER: int = lib.LWCC_BARRIER

_submit, _run, _wait, _sleep, _release = lib.lwcc_submit, lib.lwcc_run, lib.lwcc_wait, lib.lwcc_sleep, lib.lwcc_release
_PENDING: int = lib.LWCC_PENDING
_TIMEOUT: int = lib.LWCC_ERR_TIMEOUT
_SLICE_S = 0.25  # a wait returns to Python this often, so that Ctrl-C is served
_CACHE_LIMIT = 1024


class Result(NamedTuple):
    """What a finished request left: its output; the rows received from each rank (allgather, alltoall; else None); how
    many ranks took part with data of their own, as others may have joined."""

    pointer: int
    nbytes: int
    first_dim: int
    splits: Optional[tuple[int, ...]]
    contributors: int


class _Scratch(threading.local):
    """C structures of one thread, filled once per signature, so that a repeated call sets three fields."""

    def __init__(self) -> None:
        prepared: dict[Any, tuple[Any, Any, Any]] = {}
        names: dict[str, Any] = {}
        self.fields = (prepared, names, ffi.new("lwcc_ticket[1]"))


_scratch = _Scratch()


def collective_number(name: str) -> int:
    """Return the number of a collective, as "allreduce"; ValueError lists the known ones."""
    if name not in COLLECTIVE_NAMES:
        raise ValueError(f"lwcc: no collective {name!r}; known: {', '.join(COLLECTIVE_NAMES)}")
    return COLLECTIVE_NAMES.index(name)


def forget_prepared() -> None:
    """Forget the structures of this world: the algorithms that they name were proved for its ranks."""
    global _scratch
    _scratch = _Scratch()


def _prepare(prepared: dict[Any, Any], signature: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    if len(prepared) >= _CACHE_LIMIT:
        prepared.clear()
    request = ffi.new("lwcc_request *")
    keep = fill(request, signature)
    # input and output are neighbours, so that addresses are written as integers without a cast each time
    pointers = ffi.cast("uintptr_t *", ffi.addressof(request, "input"))
    entry = (request, pointers, keep)
    prepared[signature] = entry
    return entry


def _c_name(names: dict[str, Any], name: str) -> Any:
    if len(names) >= _CACHE_LIMIT:
        names.clear()
    names[name] = text = c_name(name)
    return text


def submit_pointer(
    name: str,
    collective: int,
    ptr_in: int,
    ptr_out: int,
    shape: tuple[int, ...],
    dtype: int,
    op: int = 1,
    *,
    root: int = 0,
    process_set: int = 0,
    splits: Optional[tuple[int, ...]] = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    priority: int = 0,
    algorithm: Optional[Choice] = None,
) -> int:
    """Submit one request and return its ticket. Never blocks on peers.

    Args:
        name: matches the request with those of the other ranks; unique among this rank's pending ones of its set.
        collective: ALLREDUCE, BROADCAST, ALLGATHER, REDUCESCATTER, ALLTOALL or BARRIER.
        ptr_in: address of the contiguous input, alive until the ticket is done.
        ptr_out: address of the output; may equal `ptr_in`; 0: the library allocates when the size is known.
        shape: of the input, a tuple; `()` is one element.
        dtype: code of the elements (`lwcc.dtypes`).
        op: an `Op`.
        root: broadcast: the *global* rank whose data goes out; allreduce: of no effect, but compared.
        process_set: id of the set; 0 is all ranks.
        splits: alltoall: rows for each rank of the set; None: equal parts.
        prescale: factor before the reduction, floating types only.
        postscale: factor after it.
        priority: higher goes first among the ready ones.
        algorithm: an `@lwcc.algorithm`, its "file.py:name", or the name of a built-in one; None: see `lwcc.use`.

    Raises:
        ValueError: a wrong argument, or the name is pending already. Nothing was submitted.
        LwccError: not initialised, or the job has failed.
    """
    signature = (
        collective, shape, dtype, op, root, process_set, splits, prescale, postscale, priority, algorithm,
    )  # fmt: skip
    return submit(name, signature, ptr_in, ptr_out)


def _filled(name: str, signature: tuple[Any, ...], ptr_in: Any, ptr_out: Any) -> tuple[Any, Any]:
    """Return this thread's C structure with the request in it, and its room for a ticket."""
    if _orphans:
        _sweep()
    prepared, names, tickets = _scratch.fields
    request, pointers, _ = prepared.get(signature) or _prepare(prepared, signature)
    request.name = names.get(name) or _c_name(names, name)
    if type(ptr_in) is int:
        pointers[0], pointers[1] = ptr_in, ptr_out
    else:
        request.input, request.output = ptr_in, ptr_out
    return request, tickets


def submit(name: str, signature: tuple[Any, ...], ptr_in: Any, ptr_out: Any) -> int:
    """Submit one request whose fields come as a tuple: (collective, shape, dtype, op, root, process_set, splits,
    prescale, postscale, priority, algorithm), as the arguments of `submit_pointer`.

    A pointer is an address or what `ffi.from_buffer` gives (faster; keeps its array alive only while it is held).
    """
    request, tickets = _filled(name, signature, ptr_in, ptr_out)
    status = _submit(request, 1, tickets)
    if status < 0:
        raise context.failure(status)
    return tickets[0]  # type: ignore[no-any-return]


def submit_group(requests: Sequence[Request]) -> list[int]:
    """Submit several requests as one unit: they run together, or all fail. Return their tickets, in order.

    Raises:
        ValueError: a wrong argument of any of them. None was submitted then.
        LwccError: not initialised, or the job has failed.
    """
    if not requests:
        return []
    array = ffi.new("lwcc_request[]", len(requests))
    tickets = ffi.new("lwcc_ticket[]", len(requests))
    keep = []
    for target, r in zip(array, requests):
        keep.append(fill(target, r.signature))
        name = c_name(r.name)
        keep.append(name)
        target.name = name
        target.input, target.output = ffi.cast("void *", r.ptr_in), ffi.cast("void *", r.ptr_out)
    status = _submit(array, len(requests), tickets)
    if status < 0:
        raise context.failure(status)
    return list(tickets)


def poll(ticket: int) -> bool:
    """Tell whether the request is done; a failed one is done, and `wait` raises its failure."""
    return bool(lib.lwcc_poll(ticket) != _PENDING)


def wait(ticket: int, timeout: Optional[float] = None, idle: bool = False) -> None:
    """Block until the request is done, driving the engine if nobody else does. The ticket stays valid.

    Args:
        ticket: from a submit function.
        timeout: seconds; None: no limit of its own (a stalled request fails by LWCC_STALL_ABORT).
        idle: sleep only, and leave the driving to the coordination thread.

    Raises:
        Timeout: the limit was reached, and the request goes on; or it stalled, and has failed (`poll` tells).
        Mismatch: the ranks disagree about the tensor.
        PeerLost: a rank died.
        ShutDown: the job was shut down.
    """
    step = _sleep if idle else _wait
    while True:
        status = step(ticket, _SLICE_S if timeout is None else min(timeout, _SLICE_S))
        if status != _TIMEOUT:
            break
        known = lib.lwcc_poll(ticket)  # done since, or failed by a time limit of its own?
        timeout = None if timeout is None else timeout - _SLICE_S
        if known != _PENDING or (timeout is not None and timeout <= 0):
            status = known if known != _PENDING else status
            break
    if status < 0:
        raise context.failure(status)


def result(ticket: int) -> Result:
    """Return what a finished request left. The output of a library allocation is valid until `release`."""
    out = ffi.new("lwcc_result *")
    status = lib.lwcc_get_result(ticket, out)
    if status < 0:
        raise context.failure(status)
    splits = None if out.splits == ffi.NULL else tuple(ffi.unpack(out.splits, out.nsplits))
    return Result(int(ffi.cast("uintptr_t", out.output)), out.nbytes, out.first_dim, splits, out.contributors)


def take_buffer(ticket: int) -> Any:
    """Take over the output that the library allocated, as a writable buffer object that frees it with its last view.

    An empty output is an empty bytearray.
    """
    nbytes = result(ticket).nbytes
    if nbytes == 0:
        return bytearray()
    pointer = lib.lwcc_take_output(ticket)
    if pointer == ffi.NULL:
        raise ValueError("lwcc: the output of this ticket is the caller's own, or was taken before")
    return ffi.buffer(ffi.gc(pointer, lib.lwcc_free_output, nbytes), nbytes)


def release(ticket: int) -> None:
    """Give the ticket back, once. A pending request completes on its own; its memory has to live until then."""
    lib.lwcc_release(ticket)


# Tickets dropped while pending, with what they keep alive: swept when the requests are done.
_orphans: list[tuple[int, int, Any]] = []
_completion = threading.Lock()  # guards the last step of a Ticket against two waiters


def _sweep() -> None:
    for entry in list(_orphans):
        epoch, ticket, _ = entry
        stale = epoch != context.epoch()
        if stale or lib.lwcc_poll(ticket) != _PENDING:
            _orphans.remove(entry)
            if not stale:
                lib.lwcc_release(ticket)


def complete(name: str, signature: tuple[Any, ...], ptr_in: Any, ptr_out: Any, keep: Any) -> int:
    """Submit one request (as `submit`) and wait for it; return its ticket, to be released.

    The caller drives at once, and the coordination thread is not woken. `keep` lives until the request is done, also
    if this raises, which leaves no ticket.
    """
    # PATH 3/9: from Python into the core; on the caller's thread
    request, tickets = _filled(name, signature, ptr_in, ptr_out)
    ticket: int = 0
    try:
        status = _run(request, 1, _SLICE_S, tickets)
        ticket = tickets[0]
        if status < 0:
            if not ticket:
                raise context.failure(status)
            wait(ticket)
    except BaseException:  # perhaps Ctrl-C, as soon as the core has returned
        _abandon(ticket or tickets[0], keep)
        raise
    return ticket


def _abandon(ticket: int, keep: Any) -> None:
    """Leave a request, if there is one, that may be pending to the coordination thread."""
    if ticket:
        _sleep(ticket, 0.0)
        _orphans.append((context.epoch(), ticket, keep))


def run(name: str, signature: tuple[Any, ...], ptr_in: Any, ptr_out: Any, keep: Any) -> None:
    """`complete`, and give the ticket back."""
    _release(complete(name, signature, ptr_in, ptr_out, keep))


class Ticket:
    """An asynchronous collective under way. Holds its buffers until it is complete.

    Attributes:
        name: of the request.
    """

    __slots__ = ("_epoch", "_failure", "_finish", "_id", "_keep", "_value", "name")

    def __init__(self, ticket: int, name: str, keep: Any, finish: Callable[[int], Any]) -> None:
        self.name = name
        self._id = ticket  # 0 once complete
        self._epoch = context.epoch()
        self._keep = keep
        self._finish = finish  # makes the value while the ticket is still valid
        self._value: Any = None
        self._failure: Optional[Exception] = None

    def done(self) -> bool:
        """Tell whether `wait` would return or raise at once. Never blocks."""
        ticket = self._id
        return ticket == 0 or self._epoch != context.epoch() or poll(ticket)

    def wait(self, timeout: Optional[float] = None, idle: bool = False) -> Any:
        """Return the result, after at most `timeout` seconds (None: no limit); arguments and errors of `lwcc.ops.wait`.

        May be called again, also after a `Timeout`, and from several threads.
        """
        failure: Optional[Exception] = None
        ticket = self._id
        if ticket and self._epoch == context.epoch():
            try:
                wait(ticket, timeout, idle)
            except (RuntimeError, ValueError) as error:
                status = lib.lwcc_poll(ticket) if self._id else 0
                if status == _PENDING:
                    raise
                failure = error if status < 0 else None  # it may have ended well just after its time limit
        elif ticket:
            failure = context.failure(lib.LWCC_ERR_SHUTDOWN, f'lwcc: shut down before "{self.name}" was waited for')
        with _completion:
            if self._id:
                self._complete(failure)
        if self._failure is not None:
            raise self._failure
        return self._value

    def _complete(self, failure: Optional[Exception]) -> None:
        if failure is None:
            self._value = self._finish(self._id)
        self._failure = failure
        if self._epoch == context.epoch():
            lib.lwcc_release(self._id)
        self._id, self._keep, self._finish = 0, None, _nothing

    @property
    def result(self) -> Any:
        """The result, waiting for it if need be."""
        return self.wait()

    def __del__(self, orphans: Any = _orphans) -> None:  # an argument, as the module's names are gone at exit
        if getattr(self, "_id", 0):  # compilers of functions make one without __init__, to trace with
            orphans.append((self._epoch, self._id, self._keep))

    def __repr__(self) -> str:
        state = "failed" if self._failure else "done" if self.done() else "pending"
        return f"<lwcc.Ticket {self.name!r} {state}>"


def _nothing(ticket: int) -> None:
    """Stand in for the finisher of a completed ticket, so that it holds no buffer."""
