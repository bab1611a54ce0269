"""Where the ranks meet: joins or serves the store, and brings endpoint texts to every rank.

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
from datetime import timedelta
from typing import Any, Optional, Protocol

from lwcc.errors import LwccError, SystemFailure, Timeout
from lwcc.launcher.nics import addresses
from lwcc.launcher.store import Missing
from lwcc.launchers import Place, find_place
from lwcc.meeting import settle, tell_of_stranger

__all__ = ["Place", "Store", "TorchStore", "agree_secret", "connect", "exchange", "find_place", "settle"]


class Store(Protocol):
    """A key-value store that all ranks reach."""

    def set(self, key: str, value: bytes) -> None:
        """Publish a value."""

    def get(self, key: str, timeout: float) -> bytes:
        """Return a value, waiting for it; TimeoutError after `timeout` seconds."""

    def gather(self, prefix: str, count: int, timeout: float) -> list[bytes]:
        """Return the values of prefix/0 to prefix/count-1, waiting for all; Missing after `timeout` seconds."""

    def close(self) -> None:
        """Leave the store."""


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

    def gather(self, prefix: str, count: int, timeout: float) -> list[bytes]:
        """Return the values of prefix/0 to prefix/count-1, waiting for all; Missing after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        found, missing = [], []
        for number in range(count):
            try:
                found.append(self.get(f"{prefix}/{number}", max(0.01, deadline - time.monotonic())))
            except TimeoutError:
                missing.append(number)
            except ConnectionError:
                if not missing:
                    raise
                break  # its server has given up on the missing ones too
        if missing:
            raise Missing(f"{len(missing)} of {count} keys {prefix} have not come", missing)
        return found

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
    from lwcc.launcher.server import StoreServer

    where = (place.host, place.port)
    if where in _served:
        return
    try:
        _served[where] = StoreServer(place.listen or place.host, place.port, secret, on_stranger=tell_of_stranger)
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
        if not place.secret and not place.host.startswith("127.") and place.host not in ("localhost", "::1"):
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
    store.set(f"{prefix}/endpoint/{place.rank}", endpoint)
    try:
        return store.gather(f"{prefix}/endpoint", place.size, timeout)
    except Missing as error:
        shown = ", ".join(map(str, error.numbers[:64])) + (" and more" if len(error.numbers) > 64 else "")
        raise Timeout(
            f"lwcc: rank {place.rank} waited {timeout:g} s in init; missing: rank {shown} "
            f"of {place.size}. Did every rank call lwcc.init()? (limit: LWCC_START_TIMEOUT, seconds)"
        ) from error
    except ConnectionError as error:
        raise LwccError(
            f"lwcc: rank {place.rank} lost the rendezvous at {place.host}:{place.port} while waiting "
            f"for the {place.size} ranks in init: {error}; its server (lwccrun or rank 0) has ended"
        ) from error


def local_address(place: Place) -> Optional[str]:
    """Return the address from which this host reaches the meeting point: where its peers reach it too.

    Data goes over IPv4: for a meeting point with an IPv6 address, the first IPv4 address of this host.
    """
    if not place.host:
        return None
    try:
        family = socket.getaddrinfo(place.host, place.port)[0][0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((place.host, place.port))  # sends nothing; only asks for the route
            own = str(probe.getsockname()[0])
    except OSError:
        return None
    if ":" not in own:
        return own
    others = [nic.address for nic in addresses() if ":" not in nic.address]
    return others[0] if others and own != "::1" else "127.0.0.1"


def start_timeout() -> float:
    """Return LWCC_START_TIMEOUT in seconds, 120 if it is not set."""
    text = os.environ.get("LWCC_START_TIMEOUT", "")
    try:
        return float(text) if text else 120.0
    except ValueError:
        raise ValueError(f"lwcc: LWCC_START_TIMEOUT={text!r} is not a number of seconds") from None
