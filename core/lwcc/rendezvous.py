"""Who am I, and where do the ranks meet? Reads the launcher's variables; brings endpoint texts to every rank.

Only `lwcc.init` calls this. The store holds a few hundred bytes per rank and is used at start, and once more to learn
how a lost rank ended.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import secrets
import socket
import time
import warnings
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple, Optional, Protocol

from lwcc.errors import LwccError, SystemFailure, Timeout


class Store(Protocol):
    """A key-value store that all ranks reach."""

    def set(self, key: str, value: bytes) -> None:
        """Publish a value."""

    def get(self, key: str, timeout: float) -> bytes:
        """Return a value, waiting for it; TimeoutError after `timeout` seconds."""

    def close(self) -> None:
        """Leave the store."""


class Place(NamedTuple):
    """This process's place in the job, and how to meet the others.

    `scheme`: alone, lwcc, torchelastic, master, store or mpi.
    """

    rank: int
    size: int
    scheme: str
    host: str = ""
    port: int = 0
    secret: bytes = b""
    generation: int = 0
    source: str = "nothing set"


# How launchers number their processes, innermost first: (name, proof variables, rank, size).
_LAUNCHERS = (
    ("torchrun or plain variables", ("RANK", "WORLD_SIZE"), "RANK", "WORLD_SIZE"),
    ("Open MPI", ("OMPI_COMM_WORLD_RANK",), "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPICH or Intel MPI", ("PMI_RANK", "PMI_SIZE"), "PMI_RANK", "PMI_SIZE"),
    ("Flux", ("FLUX_TASK_RANK",), "FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    ("LSF jsrun", ("JSM_NAMESPACE_RANK",), "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("srun", ("SLURM_STEP_ID", "SLURM_PROCID"), "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("MVAPICH", ("MV2_COMM_WORLD_RANK",), "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
)


def find_place(env: Mapping[str, str]) -> Place:
    """Return this process's place, from the environment of whoever started it; size 1 if nobody did.

    Raises:
        ValueError: a variable is missing or senseless; the text says which to set.
    """
    if "LWCC_RANK" in env:
        return _from_numbers(env, "LWCC_RANK", "LWCC_SIZE", "lwccrun")
    for name, proof, rank, size in _LAUNCHERS:
        if all(variable in env for variable in proof):
            return _from_numbers(env, rank, size, name)
    return Place(0, 1, "alone")


def _from_numbers(env: Mapping[str, str], rank_name: str, size_name: str, source: str) -> Place:
    rank, size = _number(env, rank_name), _number(env, size_name)
    if size < 1 or not 0 <= rank < size:
        raise ValueError(f"lwcc: {rank_name}={rank} and {size_name}={size}: the rank must be in 0..size-1")
    generation = _number(env, "LWCC_GENERATION") if env.get("LWCC_GENERATION") else 0
    if size == 1:
        return Place(0, 1, "alone", generation=generation, source=source)
    if env.get("LWCC_RENDEZVOUS"):
        host, port = parse_address(env["LWCC_RENDEZVOUS"], "LWCC_RENDEZVOUS")
        secret = parse_secret(env.get("LWCC_SECRET", ""))
        return Place(rank, size, "lwcc", host, port, secret, generation, source)
    if env.get("MASTER_ADDR") and env.get("MASTER_PORT"):
        of_agent = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and rank_name == "RANK"
        scheme = "torchelastic" if of_agent else "master"
        secret = parse_secret(env["LWCC_SECRET"]) if env.get("LWCC_SECRET") else b""
        port = _number(env, "MASTER_PORT")
        restarts = int(env.get("TORCHELASTIC_RESTART_COUNT", "0") or 0)
        return Place(rank, size, scheme, env["MASTER_ADDR"], port, secret, generation or restarts, source)
    if env.get("LWCC_ENGINE") == "mpi":
        return Place(rank, size, "mpi", generation=generation, source=source)  # they meet through the MPI itself
    raise ValueError(
        f"lwcc: {source} started this process as rank {rank} of {size}, but nothing says where the ranks meet. "
        "Set MASTER_ADDR and MASTER_PORT (a host all ranks reach and a free port on it, where rank 0 runs), "
        "or start the script with lwccrun"
    )


def _number(env: Mapping[str, str], name: str) -> int:
    text = env.get(name)
    if text is None:
        raise ValueError(f"lwcc: the variable {name} is not set, although this process seems to be part of a job")
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"lwcc: {name}={text!r} is not a whole number") from None


def parse_address(text: str, what: str) -> tuple[str, int]:
    """Split "host:port" or "[v6]:port"."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"lwcc: {what}={text!r} is not host:port")
    return host.strip("[]"), int(port)


def parse_secret(text: str) -> bytes:
    """Read the job's secret: 32 bytes, hexadecimal."""
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        raise ValueError("lwcc: LWCC_SECRET is not hexadecimal") from None
    if len(secret) != 32:
        raise ValueError(f"lwcc: LWCC_SECRET has {len(secret)} bytes, expected 32 (64 hexadecimal digits)")
    return secret


class TorchStore:
    """A store of torch.distributed, so that nothing has to listen beside it."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        """Publish a value."""
        self._store.set(key, value.hex())

    def get(self, key: str, timeout: float) -> bytes:
        """Return a value, waiting for it; TimeoutError after `timeout` seconds, ConnectionError without a store."""
        deadline, pause = time.monotonic() + timeout, 0.001
        try:
            while not self._store.check([key]):  # its own wait writes to stderr when time is up
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"nobody has set {key} for {timeout:g} s")
                time.sleep(min(pause, left))
                pause = min(2 * pause, 0.05)
            return bytes.fromhex(bytes(self._store.get(key)).decode())
        except RuntimeError as error:
            raise ConnectionError(str(error)) from error

    def close(self) -> None:
        """Leave the store."""
        self._store = None


def _agents_store(place: Place, timeout: float) -> TorchStore:
    """Join torchrun's store, in which its agent listens at MASTER_PORT."""
    distributed: Any = importlib.import_module("torch.distributed")
    limit = timedelta(seconds=timeout)
    try:
        return TorchStore(
            distributed.TCPStore(place.host, place.port, place.size, False, limit, wait_for_workers=False)
        )
    except RuntimeError as error:
        raise LwccError(
            f"lwcc: rank {place.rank} found no store of torchrun at {place.host}:{place.port}: {error}"
        ) from error


_served: dict[tuple[str, int], Any] = {}  # rank 0's stores; they live as long as the process


def _serve(place: Place, secret: bytes) -> None:
    from lwcc.launcher.store import StoreServer

    where = (place.host, place.port)
    if where in _served:
        return
    try:
        _served[where] = StoreServer(place.host, place.port, secret)
    except OSError as error:
        raise SystemFailure(
            f"lwcc: rank 0 cannot serve the rendezvous on MASTER_ADDR:MASTER_PORT = {place.host}:{place.port}: "
            f"{error.strerror or error}. If another program (torch.distributed, an earlier run) holds the port, set "
            "MASTER_PORT to a free one on every rank; MASTER_ADDR must be an address of the host of rank 0"
        ) from error


def connect(place: Place, timeout: float) -> tuple[Store, bytes]:
    """Join the meeting point; return the store and the job's secret (32 bytes).

    Raises:
        LwccError: nobody serves it, it refuses the secret, or it cannot be served.
    """
    if place.scheme == "torchelastic":
        store: Store = _agents_store(place, timeout)
        return store, agree_secret(store, place, timeout)
    secret = place.secret or hashlib.sha256(f"lwcc {place.host}:{place.port}".encode()).digest()
    if place.scheme == "master" and place.rank == 0:
        if not place.secret and not place.host.startswith("127.") and place.host != "localhost":
            warnings.warn("lwcc: LWCC_SECRET is not set: anyone who reaches MASTER_PORT could join", stacklevel=4)
        _serve(place, secret)
    store = _connect_with_patience(place, secret, timeout)
    if place.scheme == "master" and not place.secret:
        return store, agree_secret(store, place, timeout)
    return store, hashlib.sha256(b"lwcc data" + secret).digest()


def _connect_with_patience(place: Place, secret: bytes, timeout: float) -> Store:
    """Connect to the store, again and again until it listens (rank 0 may start later than we)."""
    from lwcc.launcher.store import StoreClient

    deadline = time.monotonic() + timeout
    pause = 0.01
    while True:
        try:
            store: Store = StoreClient(place.host, place.port, secret)
            return store
        except ConnectionError as error:
            listens_later = isinstance(error.__cause__, (ConnectionRefusedError, socket.gaierror, TimeoutError))
            if not listens_later or time.monotonic() + pause > deadline or place.scheme == "lwcc":
                raise LwccError(
                    f"lwcc: rank {place.rank} found no rendezvous at {place.host}:{place.port} ({error}); "
                    "is the process that serves it (lwccrun, or rank 0) running and reachable?"
                ) from error
        time.sleep(pause)
        pause = min(2 * pause, 0.25)


def agree_secret(store: Store, place: Place, timeout: float) -> bytes:
    """Return the job's secret, which rank 0 makes and the store hands on."""
    key = f"lwcc/g{place.generation}/secret"
    if place.rank == 0:
        try:
            return store.get(key, 0.0)  # a second init of the same job
        except TimeoutError:
            store.set(key, secrets.token_bytes(32))
    return store.get(key, timeout)


def exchange(store: Store, prefix: str, place: Place, endpoint: bytes, timeout: float) -> list[bytes]:
    """Publish this rank's endpoint and collect everybody's, in rank order.

    Raises:
        Timeout: naming the ranks that did not arrive.
        LwccError: the meeting point has gone.
    """
    deadline = time.monotonic() + timeout
    store.set(f"{prefix}/endpoint/{place.rank}", endpoint)
    found: list[bytes] = []
    missing: list[int] = []
    for rank in range(place.size):
        try:
            found.append(store.get(f"{prefix}/endpoint/{rank}", max(0.01, deadline - time.monotonic())))
        except TimeoutError:
            missing.append(rank)
        except ConnectionError as error:
            if missing:
                break  # its server has given up on the missing ones too
            raise LwccError(
                f"lwcc: rank {place.rank} lost the rendezvous at {place.host}:{place.port} while waiting "
                f"for rank {rank} of {place.size} in init: {error}; its server (lwccrun or rank 0) has ended"
            ) from error
    if missing:
        raise Timeout(
            f"lwcc: rank {place.rank} waited {timeout:g} s in init; missing: rank {', '.join(map(str, missing))} "
            f"of {place.size}. Did every rank call lwcc.init()? (limit: LWCC_START_TIMEOUT, seconds)"
        )
    return found


def local_address(place: Place) -> Optional[str]:
    """Return the address from which this host reaches the meeting point: where its peers reach it too."""
    if not place.host:
        return None
    try:
        family = socket.getaddrinfo(place.host, place.port)[0][0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((place.host, place.port))  # sends nothing; only asks for the route
            return str(probe.getsockname()[0])
    except OSError:
        return None


def start_timeout() -> float:
    """Return LWCC_START_TIMEOUT in seconds, 120 if it is not set."""
    text = os.environ.get("LWCC_START_TIMEOUT", "")
    try:
        return float(text) if text else 120.0
    except ValueError:
        raise ValueError(f"lwcc: LWCC_START_TIMEOUT={text!r} is not a number of seconds") from None
