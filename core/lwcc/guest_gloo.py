"""The engine gloo: threads that run the core's collectives through torch.distributed, for comparison.

Each process set has a group of its own for named and one for raw requests, so that their orders never meet.
"""

from __future__ import annotations

import importlib
import threading
from datetime import timedelta
from typing import Any

import torch

from lwcc import dtypes, launchers, rendezvous
from lwcc._native import ffi, lib
from lwcc.ops import ALLGATHER, ALLREDUCE, ALLTOALL, BARRIER, BROADCAST, Op

THREADS = 8  # collectives of as many sets may run side by side
dist: Any = importlib.import_module("torch.distributed")
_REDUCTIONS = {Op.SUM: "SUM", Op.MIN: "MIN", Op.MAX: "MAX", Op.PRODUCT: "PRODUCT"}
_LOGIC = {Op.SUM: Op.MAX, Op.PRODUCT: Op.MIN}  # of bool, held as bytes


class Guest:
    """This process's part; `serve` runs on `THREADS` threads until the job ends."""

    def __init__(self, place: rendezvous.Place, store: rendezvous.Store, timeout: float, epoch: str) -> None:
        """Meet the other ranks; collective. Raises TimeoutError if they do not come."""
        host = rendezvous.local_address(place) or "127.0.0.1"
        limit = timedelta(seconds=timeout)
        key = f"gloo/{epoch}"
        if place.rank == 0:
            self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=limit)
            store.set(key, f"{host}:{self._store.port}".encode())
        else:
            where, port = launchers.parse_address(store.get(key, timeout).decode(), key)
            self._store = dist.TCPStore(where, port, is_master=False, wait_for_workers=False, timeout=limit)
        self._timeout = limit
        self._groups: dict[tuple[int, int], Any] = {}
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads."""
        for number in range(THREADS):
            thread = threading.Thread(target=self.serve, name=f"lwcc-gloo-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def end(self) -> None:
        """Wait for the threads, which the core has told to end; one that waits for a lost rank is left behind."""
        for thread in self._threads:
            thread.join(1.0)
        if not any(thread.is_alive() for thread in self._threads):
            self._groups.clear()

    def serve(self) -> None:
        """Run one collective after the other until the core has no more."""
        call = ffi.new("lwcc_guest_call *")
        while True:
            status = lib.lwcc_guest_next(call, 60.0)
            if status == lib.LWCC_PENDING:
                continue
            if status < 0:
                return
            try:
                self._run(call)
                lib.lwcc_guest_done(call.id, lib.LWCC_OK, ffi.NULL)
            except (RuntimeError, ValueError, TypeError) as error:
                lib.lwcc_guest_done(call.id, lib.LWCC_ERR_SYSTEM, str(error).split("\n")[0].encode()[:250])

    def _group(self, call: Any) -> Any:
        key = (call.set, call.raw)
        with self._lock:
            if key not in self._groups:
                rank, size = ffi.new("int32_t *"), ffi.new("int32_t *")
                lib.lwcc_set_info(call.set, rank, size)
                store = dist.PrefixStore(f"set{call.set}.{call.raw}", self._store)
                self._groups[key] = dist.ProcessGroupGloo(store, rank[0], size[0], self._timeout)
            return self._groups[key]

    def _run(self, call: Any) -> None:
        group = self._group(call)
        size, me = group.size(), group.rank()
        counts = [int(call.counts[i]) for i in range(size)] if call.counts else [int(call.count)] * size
        if call.collective == BARRIER:
            group.barrier().wait()
        elif call.collective == ALLREDUCE:
            _reduce(group, _tensor(call.output, call.count, call.dtype), call)
        elif call.collective == BROADCAST:
            _broadcast(group, _tensor(call.output, call.count, call.dtype), call.root)
        elif call.collective == ALLGATHER:
            out = _tensor(call.output, sum(counts), call.dtype)
            blocks = list(torch.split(out, counts))
            blocks[me].copy_(_tensor(call.input, counts[me], call.dtype))
            if len(set(counts)) == 1:
                group._allgather_base(out, blocks[me].clone()).wait()
            else:
                for root, block in enumerate(blocks):
                    _broadcast(group, block, root)
        elif call.collective == ALLTOALL:
            arriving = [int(call.recv_counts[i]) for i in range(size)] if call.recv_counts else counts
            out = _tensor(call.output, sum(arriving), call.dtype)
            group.alltoall_base(out, _tensor(call.input, sum(counts), call.dtype), arriving, counts).wait()
        else:
            whole = _tensor(call.input, sum(counts), call.dtype).clone()
            _reduce(group, whole, call)
            _tensor(call.output, counts[me], call.dtype).copy_(torch.split(whole, counts)[me])


def _tensor(pointer: Any, count: int, code: int) -> torch.Tensor:
    """The memory as a tensor of one dimension; bool as bytes."""
    name = dtypes.NAMES[code]
    kind = torch.uint8 if name == "bool" else getattr(torch, name)
    if count == 0:
        return torch.empty(0, dtype=kind)
    return torch.frombuffer(ffi.buffer(pointer, count * kind.itemsize), dtype=kind, count=count)


def _reduce(group: Any, tensor: torch.Tensor, call: Any) -> None:
    op = Op(call.op)
    if dtypes.NAMES[call.dtype] == "bool":
        op = _LOGIC.get(op, op)
    options = dist.AllreduceOptions()
    options.reduceOp = getattr(dist.ReduceOp, _REDUCTIONS[op])
    if tensor.numel():
        group.allreduce([tensor], options).wait()


def _broadcast(group: Any, tensor: torch.Tensor, root: int) -> None:
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = root, 0
    if tensor.numel():
        group.broadcast([tensor], options).wait()
