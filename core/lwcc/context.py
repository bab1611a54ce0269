"""The life of a job in this process: init, shutdown, who am I."""

from __future__ import annotations

import atexit
import os
import secrets as random_bytes
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from lwcc import engines, errors, journal, rendezvous
from lwcc._native import ffi, lib


class World(NamedTuple):
    """This rank's numbers; `cross_*` are the index and the number of nodes that have my local rank."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


class _Context:
    """What one process knows of its job. There is one, because a process is one rank."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # guards init and shutdown
        self.world: Optional[World] = None
        self.store: Optional[rendezvous.Store] = None
        self.generation = 0
        self.inits = 0  # how often this process has initialised: keeps the worlds' keys and tickets apart
        self.owner = 0  # pid that initialised
        self.exits: dict[int, str] = {}  # how lost ranks ended, as the launcher says
        self.registered = False
        self.endings: list[Any] = []  # called at shutdown


_context = _Context()


def init(
    comm: Optional[Sequence[int]] = None,
    process_sets: Optional[Sequence[Any]] = None,
    *,
    rank: Optional[int] = None,
    size: Optional[int] = None,
    rendezvous: Optional[str] = None,
    secret: Optional[bytes] = None,
    timeout: Optional[float] = None,
) -> None:
    """Join the job: find this process's place, meet the other ranks, start the coordination thread. Collective.

    The place comes from the arguments, else from LWCC_RANK, LWCC_SIZE, LWCC_RENDEZVOUS and LWCC_SECRET (lwccrun), else
    from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (torchrun), else from the variables of mpirun, mpiexec, srun and
    others (`docs/launching.md`); with none of these the job has size 1. A second call does nothing. After `shutdown` it
    may be called again.

    Args:
        comm: accepted for scripts that pass `list(range(size))`; other lists are refused (use process sets).
        process_sets: sets to add at once (`ProcessSet`), the same on every rank.
        rank: this process's rank; with `size`, `rendezvous` and `secret`.
        size: number of ranks.
        rendezvous: "host:port" of a running store.
        secret: 32 bytes shared by the ranks.
        timeout: seconds to wait for the other ranks; default LWCC_START_TIMEOUT, or 120.

    Raises:
        ValueError: arguments or variables are missing or senseless.
        Timeout: ranks did not arrive; the text names them.
        LwccError: the meeting point or a peer cannot be reached.
    """
    with _context.lock:
        if _context.owner not in (0, os.getpid()):
            raise errors.ShutDown("lwcc: init in a forked child of an initialised process; start it by spawn instead")
        if _context.world is None:
            place = _place(rank, size, rendezvous, secret)
            if comm is not None and list(comm) != list(range(place.size)):
                raise ValueError(
                    f"lwcc: init(comm={comm}) is not all {place.size} ranks; use add_process_set for a subset"
                )
            _join(place, timeout)
    if process_sets:
        from lwcc.process_sets import add_process_set

        for process_set in process_sets:
            add_process_set(process_set)


def _place(rank: Optional[int], size: Optional[int], where: Optional[str], secret: Optional[bytes]) -> rendezvous.Place:
    if rank is None and size is None and where is None:
        return rendezvous.find_place(os.environ)
    if rank is None or size is None or (size > 1 and (where is None or secret is None)):
        raise ValueError("lwcc: init needs rank, size, rendezvous and secret together, or none of them")
    env = {"LWCC_RANK": str(rank), "LWCC_SIZE": str(size), "LWCC_RENDEZVOUS": where or ""}
    env["LWCC_SECRET"] = (secret or b"").hex()
    env["LWCC_GENERATION"] = os.environ.get("LWCC_GENERATION", "")
    return rendezvous.find_place(env)


def init_at(store: rendezvous.Store, place: rendezvous.Place, timeout: float) -> None:
    """Join a job whose ranks meet in a store of their own (`place.scheme` "store"); as `init` in all else."""
    with _context.lock:
        if _context.world is not None:
            raise ValueError("lwcc: initialised already")
        _join(place, timeout, store)


def _join(place: rendezvous.Place, timeout: Optional[float], store: Optional[rendezvous.Store] = None) -> None:
    limit = rendezvous.start_timeout() if timeout is None else timeout
    secret = random_bytes.token_bytes(32)
    engine = engines.chosen()
    mpi = engines.load_mpi() if engine == "mpi" else None
    if mpi is not None:
        place = engines.place_of_mpi(mpi, place)
    else:
        engines.warn_of_singletons(place)
    if store is not None:
        secret = rendezvous.agree_secret(store, place, limit)
    elif place.scheme == "mpi":
        secret = engines.secret_by_mpi(mpi)
    elif place.scheme != "alone":
        place = rendezvous.settle(place, limit)
        store, secret = rendezvous.connect(place, limit)
    _context.inits += 1
    try:
        endpoint = _open(place, secret)
        endpoints: list[bytes] = []
        if mpi is not None:
            engines.use_mpi(mpi)
        elif engine == "gloo":
            engines.use_gloo(place, store, limit, f"{place.generation}.{_context.inits}")
        if place.scheme == "mpi":
            endpoints = engines.exchange_by_mpi(mpi, endpoint)
        if store is not None:
            store.set(f"started/{place.rank}", b"1")  # the launcher knows by this who has come to init
            prefix = f"lwcc/g{place.generation}.{_context.inits}"
            endpoints = rendezvous.exchange(store, prefix, place, endpoint, limit)
        texts = [ffi.new("char[]", text) for text in endpoints]
        status = lib.lwcc_join(ffi.new("char *[]", texts) if texts else ffi.NULL, limit)
        if status < 0:
            raise failure(status)
    except BaseException:
        lib.lwcc_shutdown()
        if store is not None:
            store.close()
        raise
    world = ffi.new("lwcc_world *")
    lib.lwcc_get_world(world)
    _context.world = World(*(getattr(world, field) for field in World._fields))
    _context.store, _context.generation, _context.owner = store, place.generation, os.getpid()
    _context.exits.clear()
    journal.begin()
    if not _context.registered:
        atexit.register(shutdown)
        _context.registered = True
    if os.environ.get("LWCC_ALGORITHM") or os.environ.get("LWCC_PLUGIN"):
        from lwcc import choosing

        try:
            choosing.apply_environment(0)
        except BaseException:
            shutdown()
            raise


def _open(place: rendezvous.Place, secret: bytes) -> bytes:
    """Create the listening sockets; return the endpoint text."""
    job = ffi.new("lwcc_job *")
    key = ffi.new("uint8_t[]", secret)
    job.rank, job.size, job.secret = place.rank, place.size, key
    job.generation = (place.generation << 16) + _context.inits
    text = ffi.new("char[]", 4096)
    address = None if os.environ.get("LWCC_ADDRESS") else rendezvous.local_address(place)
    if address:
        os.environ["LWCC_ADDRESS"] = address
    try:
        status = lib.lwcc_open(job, text, 4096)
    finally:
        if address:
            del os.environ["LWCC_ADDRESS"]
    if status < 0:
        raise failure(status)
    return bytes(ffi.string(text))


def shutdown() -> None:
    """Leave the job in good order; fails what is pending with `ShutDown`. Bounded, and harmless if not initialised.

    Runs at exit by itself. In a forked child it only forgets.
    """
    with _context.lock:
        if _context.world is None:
            return
        if _context.owner == os.getpid():
            journal.end(_context.world)
        _context.world = None
        for ending in _context.endings:
            ending()
        if _context.owner == os.getpid():
            lost = lib.lwcc_lost_rank() >= 0
            lib.lwcc_shutdown()
            engines.end(lost)
            if _context.store is not None:
                _context.store.close()
            _context.owner = 0
        _context.store = None


def is_initialized() -> bool:
    """Tell whether `init` has succeeded and `shutdown` was not called since."""
    return _context.world is not None


def world() -> World:
    """Return all numbers of this rank at once.

    Raises:
        ValueError: not initialised.
    """
    if _context.world is None:
        raise ValueError("lwcc is not initialised; call lwcc.init() first")
    return _context.world


def rank() -> int:
    """Return this process's rank, 0..size-1; ValueError before init."""
    return world().rank


def size() -> int:
    """Return the number of ranks; ValueError before init."""
    return world().size


def local_rank() -> int:
    """Return this rank's index on its node; ValueError before init."""
    return world().local_rank


def local_size() -> int:
    """Return the number of ranks on this node; ValueError before init."""
    return world().local_size


def cross_rank() -> int:
    """Return this node's index among the nodes that have my local rank; ValueError before init."""
    return world().cross_rank


def cross_size() -> int:
    """Return the number of nodes that have my local rank; ValueError before init."""
    return world().cross_size


def is_homogeneous() -> bool:
    """Tell whether every node has as many ranks as this one; ValueError before init."""
    w = world()
    return w.local_size * w.cross_size == w.size


def epoch() -> int:
    """Return a number that changes with every init and shutdown: tickets of an earlier world are void."""
    return _context.inits if _context.world is not None else -_context.inits


def at_shutdown(ending: Any) -> None:
    """Have `ending()` called at every shutdown, before the engine stops."""
    _context.endings.append(ending)


def failure(status: int, text: Optional[str] = None) -> Exception:
    """Return the exception for this thread's failed call, to be raised by the caller.

    Args:
        status: the negative status.
        text: its text; default what the core said on this thread.
    """
    if text is None:
        text = ffi.string(lib.lwcc_error()).decode("utf-8", "replace")
    lost = -1
    if status == lib.LWCC_ERR_PEER_LOST:
        lost = lib.lwcc_lost_rank()
        ended = _how_it_ended(lost)
        if ended and ended not in text:
            text = f"{text}; the launcher saw: {ended}"
    return errors.from_status(ffi.string(lib.lwcc_status_name(status)).decode(), status, text, lost)


def lost_rank(within: float) -> Optional[errors.PeerLost]:
    """Return the failure that a dead rank is, waiting at most `within` seconds for the news; None if none has died.

    For what another library carries out between the ranks, whose failure may come before the core's news.
    """
    deadline = time.monotonic() + within
    while lib.lwcc_lost_rank() < 0:
        if not is_initialized() or time.monotonic() >= deadline:
            return None
        time.sleep(0.005)
    found = failure(lib.LWCC_ERR_PEER_LOST, f"lwcc: rank {lib.lwcc_lost_rank()} is gone")
    return found if isinstance(found, errors.PeerLost) else None


def _how_it_ended(lost: int) -> str:
    """Ask the launcher, once per rank and for at most 300 ms, how a lost rank ended."""
    store = _context.store
    if lost < 0 or store is None:
        return ""
    if lost not in _context.exits:
        _context.exits[lost] = ""
        try:
            _context.exits[lost] = store.get(f"exit/{lost}", 0.3).decode("utf-8", "replace")
        except (OSError, EOFError):
            pass  # TimeoutError is an OSError: no launcher, or it has gone; the core's own text stands
    return _context.exits[lost]
