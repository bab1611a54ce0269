"""Rendezvous store: the protocol of a small key-value server (server.py), and its client, over TCP.

A connection starts with a mutual challenge: each side proves by HMAC-SHA256 that it holds the job's secret, and nothing
else is read from a peer that has not. After that, frames are ``u32 length | u8 op | body``; keys and values are bytes
with limits, never pickles. Handshake:

    server -> client   MAGIC, server nonce (32 bytes)
    client -> server   MAGIC, client nonce (32 bytes), HMAC("client", both nonces)
    server -> client   HMAC("server", both nonces)
"""

from __future__ import annotations

import collections
import hashlib
import hmac
import os
import socket
import struct
import threading
import time

SECRET_NBYTES = 32
MAX_KEY_NBYTES = 1024
MAX_VALUE_NBYTES = 16 << 20
WAIT_SLICE_S = 5.0  # longest time the server holds one get, so that it notices clients that have gone
ANSWER_S = 30.0  # past that a server that does not answer is lost

MAGIC = b"LWCCKV1\n"
NONCE_NBYTES = 32
MAX_FRAME_NBYTES = 1 + 4 + MAX_KEY_NBYTES + 8 + MAX_VALUE_NBYTES
SET, GET, TRY_GET, ADD, GATHER = range(1, 6)
MAX_GATHERED = 65536
OK, ABSENT, REFUSED = range(3)


def proof(secret: bytes, role: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """What shows that a side knows the secret, without telling it."""
    return hmac.new(secret, role + server_nonce + client_nonce, hashlib.sha256).digest()


def check_secret(secret: bytes) -> bytes:
    """Return it. Raises ValueError unless it has 32 bytes."""
    if len(secret) != SECRET_NBYTES:
        raise ValueError(f"store: the secret has {len(secret)} bytes, expected {SECRET_NBYTES}")
    return bytes(secret)


def _recv_exact(sock: socket.socket, nbytes: int, deadline: float | None = None) -> bytes:
    """Read exactly nbytes. With a deadline (monotonic seconds) the whole read must end by then, not each part of it."""
    parts = bytearray()
    while len(parts) < nbytes:
        if deadline is not None:
            sock.settimeout(max(deadline - time.monotonic(), 0.001))
            if time.monotonic() >= deadline:
                raise ConnectionError("store: the other side was too slow")
        got = sock.recv(min(nbytes - len(parts), 1 << 20))
        if not got:
            raise ConnectionError("store: the connection was closed by the other side")
        parts += got
    return bytes(parts)


def _send_frame(sock: socket.socket, op: int, body: bytes) -> None:
    sock.sendall(struct.pack("!IB", len(body) + 1, op) + body)


def _recv_frame(sock: socket.socket) -> tuple[int, bytes]:
    (nbytes,) = struct.unpack("!I", _recv_exact(sock, 4))
    if not 1 <= nbytes <= MAX_FRAME_NBYTES:
        raise ConnectionError(f"store: a frame of {nbytes} bytes, expected 1 to {MAX_FRAME_NBYTES}")
    frame = _recv_exact(sock, nbytes)
    return frame[0], frame[1:]


def pack_key(key: str) -> bytes:
    """The key with its length in front. Raises ValueError past the limit."""
    raw = key.encode()
    if not 1 <= len(raw) <= MAX_KEY_NBYTES:
        raise ValueError(f"store: a key of {len(raw)} bytes, expected 1 to {MAX_KEY_NBYTES}")
    return struct.pack("!I", len(raw)) + raw


def unpack_key(body: bytes) -> tuple[str, bytes]:
    """Split a request into its key and the rest. Raises ConnectionError."""
    if len(body) < 4:
        raise ConnectionError("store: a request shorter than its key length")
    (nbytes,) = struct.unpack_from("!I", body)
    if not 1 <= nbytes <= MAX_KEY_NBYTES or len(body) < 4 + nbytes:
        raise ConnectionError(f"store: a key of {nbytes} bytes in a request of {len(body)}")
    return body[4 : 4 + nbytes].decode("utf-8", "backslashreplace"), body[4 + nbytes :]


def check_value(key: str, value: bytes) -> bytes:
    """Return it. Raises ValueError past the limit."""
    if len(value) > MAX_VALUE_NBYTES:
        raise ValueError(f"store: the value of {key!r} has {len(value)} bytes, at most {MAX_VALUE_NBYTES} are kept")
    return bytes(value)


class Missing(TimeoutError):
    """Not everything came in time. numbers: what is missing."""

    def __init__(self, text: str, numbers: list[int]) -> None:
        super().__init__(text)
        self.numbers = numbers


class StoreClient:
    """Client of a StoreServer. Methods may be called from any thread; a call that waits holds up no other.

    Each call borrows a connection of its own from a pool, and opens one if none is idle. After a fork the child starts
    with an empty pool. Raises ConnectionError if the server cannot be reached, does not know the secret, or went away.
    """

    def __init__(self, host: str, port: int, secret: bytes, connect_timeout: float = 10.0) -> None:
        self._address = (host, port)
        self._secret = check_secret(secret)
        self._connect_timeout = connect_timeout
        self._lock = threading.Lock()  # guards the rest
        self._idle: collections.deque[socket.socket] = collections.deque()
        self._pid = os.getpid()
        self._closed = False
        self._give_back(self._connect())

    def set(self, key: str, value: bytes) -> None:
        """Set key to value. Raises ValueError past the limits."""
        self._call(SET, pack_key(key) + check_value(key, value))

    def get(self, key: str, timeout: float) -> bytes:
        """Wait up to timeout seconds until key is present. Raises TimeoutError naming the key.

        A server whose host has vanished is given up after as long again, at least 1 s and at most ANSWER_S.
        """
        deadline = time.monotonic() + timeout
        patience = min(ANSWER_S, max(1.0, timeout))
        while True:
            wait_s = min(max(deadline - time.monotonic(), 0.0), WAIT_SLICE_S)
            found, value = self._call(GET, pack_key(key) + struct.pack("!d", wait_s), wait_s + patience)
            if found:
                return value
            if time.monotonic() >= deadline:
                raise TimeoutError(f"store: key {key!r} did not appear within {timeout:g} s")

    def try_get(self, key: str) -> bytes | None:
        """The key's value, or None; does not wait for it."""
        found, value = self._call(TRY_GET, pack_key(key))
        return value if found else None

    def gather(self, prefix: str, count: int, timeout: float) -> list[bytes]:
        """Wait up to timeout seconds for prefix/0 to prefix/count-1. Raises Missing, which lists what has not come.

        It asks again and again, less and less often: if the server ends meanwhile, what was missing is known.
        """
        deadline = time.monotonic() + timeout
        patience = min(ANSWER_S, max(1.0, timeout))
        slice_s, numbers = 0.5, list[int]()
        while True:
            wait_s = min(max(deadline - time.monotonic(), 0.0), slice_s)
            slice_s = min(2 * slice_s, WAIT_SLICE_S)
            body = pack_key(prefix) + struct.pack("!Id", count, wait_s)
            try:
                found, answer = self._call(GATHER, body, wait_s + patience)
            except ConnectionError as error:
                if not numbers:
                    raise
                raise Missing(f"store: {error}; {len(numbers)} of {count} keys {prefix!r} lacked", numbers) from error
            if found:
                return _split(answer, count)
            numbers = list(struct.unpack(f"!{len(answer) // 4}I", answer))
            if time.monotonic() >= deadline:
                raise Missing(f"store: {len(numbers)} of {count} keys {prefix!r} did not appear", numbers)

    def add(self, key: str, n: int) -> int:
        """Add n to the number stored under key (absent: 0), atomically; returns the sum. ValueError if no number."""
        return int(self._call(ADD, pack_key(key) + struct.pack("!q", n))[1])

    def own_address(self) -> str:
        """This machine's address on the way to the server."""
        sock = self._take()
        address: str = sock.getsockname()[0]
        self._give_back(sock)
        return address[7:] if address.startswith("::ffff:") else address

    def close(self) -> None:
        """Close idle connections; a call in progress ends normally, later ones raise ConnectionError."""
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().close()

    def _call(self, op: int, body: bytes, answer_s: float = ANSWER_S) -> tuple[bool, bytes]:
        """Ask; return whether the answer is the thing itself, and its bytes."""
        sock = self._take()
        try:
            sock.settimeout(answer_s)
            _send_frame(sock, op, body)
            status, answer = _recv_frame(sock)
        except OSError as error:
            sock.close()
            raise ConnectionError(f"store: lost the server at {self._where()}: {error}") from error
        except BaseException:  # interrupted half-way: the answer would be taken for the next call's
            sock.close()
            raise
        self._give_back(sock)
        if status == REFUSED:
            raise ValueError(answer.decode("utf-8", "replace"))
        return status == OK, answer

    def _take(self) -> socket.socket:
        with self._lock:
            if self._closed:
                raise ConnectionError("store: this client is closed")
            if self._pid != os.getpid():
                self._idle = collections.deque()
                self._pid = os.getpid()
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def _give_back(self, sock: socket.socket) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(sock)
                return
        sock.close()

    def _connect(self) -> socket.socket:
        deadline = time.monotonic() + self._connect_timeout
        try:
            sock = socket.create_connection(self._address, timeout=self._connect_timeout)
        except OSError as error:
            raise ConnectionError(f"store: cannot reach the server at {self._where()}: {error}") from error
        try:
            self._introduce(sock, deadline)
        except OSError as error:
            sock.close()
            raise ConnectionError(f"store: {self._where()} refused this job's secret: {error}") from error
        except BaseException:
            sock.close()
            raise
        return sock

    def _introduce(self, sock: socket.socket, deadline: float) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _recv_exact(sock, len(MAGIC), deadline) != MAGIC:
            raise ConnectionError("it is not a rendezvous store")
        theirs = _recv_exact(sock, NONCE_NBYTES, deadline)
        nonce = os.urandom(NONCE_NBYTES)
        sock.sendall(MAGIC + nonce + proof(self._secret, b"client", theirs, nonce))
        shown = _recv_exact(sock, hashlib.sha256().digest_size, deadline)
        if not hmac.compare_digest(shown, proof(self._secret, b"server", theirs, nonce)):
            raise ConnectionError("it does not know the secret")

    def _where(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"


def _split(answer: bytes, count: int) -> list[bytes]:
    """Take apart values that come with their lengths."""
    found, at = [], 0
    for _ in range(count):
        (nbytes,) = struct.unpack_from("!I", answer, at)
        found.append(answer[at + 4 : at + 4 + nbytes])
        at += 4 + nbytes
    return found
