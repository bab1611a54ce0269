"""Rendezvous store: a small key-value server and its client, over TCP.

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
MAX_TOTAL_NBYTES = 512 << 20
MAX_STRANGERS = 64  # connections that have not authenticated; past this the oldest is dropped
HANDSHAKE_S = 5.0
WAIT_SLICE_S = 5.0  # longest time the server holds one get, so that it notices clients that have gone
ANSWER_S = 30.0  # past that a server that does not answer is lost

_MAGIC = b"LWCCKV1\n"
_NONCE_NBYTES = 32
_MAX_FRAME_NBYTES = 1 + 4 + MAX_KEY_NBYTES + 8 + MAX_VALUE_NBYTES
_SET, _GET, _TRY_GET, _ADD = range(1, 5)
_OK, _ABSENT, _REFUSED = range(3)


def _proof(secret: bytes, role: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    return hmac.new(secret, role + server_nonce + client_nonce, hashlib.sha256).digest()


def _check_secret(secret: bytes) -> bytes:
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
    if not 1 <= nbytes <= _MAX_FRAME_NBYTES:
        raise ConnectionError(f"store: a frame of {nbytes} bytes, expected 1 to {_MAX_FRAME_NBYTES}")
    frame = _recv_exact(sock, nbytes)
    return frame[0], frame[1:]


def _pack_key(key: str) -> bytes:
    raw = key.encode()
    if not 1 <= len(raw) <= MAX_KEY_NBYTES:
        raise ValueError(f"store: a key of {len(raw)} bytes, expected 1 to {MAX_KEY_NBYTES}")
    return struct.pack("!I", len(raw)) + raw


def _unpack_key(body: bytes) -> tuple[str, bytes]:
    if len(body) < 4:
        raise ConnectionError("store: a request shorter than its key length")
    (nbytes,) = struct.unpack_from("!I", body)
    if not 1 <= nbytes <= MAX_KEY_NBYTES or len(body) < 4 + nbytes:
        raise ConnectionError(f"store: a key of {nbytes} bytes in a request of {len(body)}")
    return body[4 : 4 + nbytes].decode("utf-8", "backslashreplace"), body[4 + nbytes :]


def _check_value(key: str, value: bytes) -> bytes:
    if len(value) > MAX_VALUE_NBYTES:
        raise ValueError(f"store: the value of {key!r} has {len(value)} bytes, at most {MAX_VALUE_NBYTES} are kept")
    return bytes(value)


class StoreServer:
    """The store itself. Listens at once; serves until close(). All methods may be called from any thread.

    host: an address or a name; "*": all addresses of this machine, IPv4 and IPv6. secret: 32 bytes. Raises OSError if
    the address cannot be bound, ValueError for a secret of another length.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, secret: bytes = b"") -> None:
        self._secret = _check_secret(secret)
        self._data: dict[str, bytes] = {}
        self._total_nbytes = 0
        self._changed = threading.Condition()  # guards everything below and the two above
        self._closed = False
        self._connections: set[socket.socket] = set()
        self._strangers: collections.deque[socket.socket] = collections.deque()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        if host != "*":
            self._listener = socket.create_server((host, port), family=family, backlog=4096)
        elif socket.has_dualstack_ipv6():
            self._listener = socket.create_server(("", port), family=socket.AF_INET6, backlog=4096, dualstack_ipv6=True)
        else:
            self._listener = socket.create_server(("", port), backlog=4096)
        self.host: str = host
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept_loop, name="lwcc-store", daemon=True).start()

    def set(self, key: str, value: bytes) -> None:
        """Set key. Raises ValueError past the limits of one value or of the whole store."""
        _pack_key(key)
        value = _check_value(key, value)
        with self._changed:
            self._set_locked(key, value)

    def get(self, key: str, timeout: float) -> bytes:
        """Wait up to timeout seconds for key. Raises TimeoutError naming it, ConnectionError when closed meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._data or self._closed, timeout)
            if key in self._data:
                return self._data[key]
            if self._closed:
                raise ConnectionError(f"store: closed while waiting for key {key!r}")
        raise TimeoutError(f"store: key {key!r} did not appear within {timeout:g} s")

    def try_get(self, key: str) -> bytes | None:
        """The key's value, or None."""
        with self._changed:
            return self._data.get(key)

    def add(self, key: str, n: int) -> int:
        """Add n to the decimal number stored under key (absent: 0); returns the sum. ValueError if it is no number."""
        _pack_key(key)
        with self._changed:
            total = int(self._data.get(key, b"0")) + n
            self._set_locked(key, b"%d" % total)
            return total

    def prefix(self, prefix: str) -> dict[str, bytes]:
        """All pairs whose key starts with prefix."""
        with self._changed:
            return {k: v for k, v in self._data.items() if k.startswith(prefix)}

    def close(self) -> None:
        """Stop listening and drop every connection. May be called twice."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            connections = list(self._connections)
            self._changed.notify_all()
        for sock in [self._listener, *connections]:
            _hang_up(sock)
        self._listener.close()

    def _set_locked(self, key: str, value: bytes) -> None:
        total = self._total_nbytes + len(value) - len(self._data.get(key, b""))
        if total > MAX_TOTAL_NBYTES:
            raise ValueError(f"store: full, {key!r} would make {total} bytes of at most {MAX_TOTAL_NBYTES}")
        self._total_nbytes = total
        self._data[key] = value
        self._changed.notify_all()

    def _accept_loop(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(0.05)  # out of descriptors: let some go, then try again
                continue
            with self._changed:
                if self._closed:
                    sock.close()
                    return
                self._connections.add(sock)
                self._strangers.append(sock)
                if len(self._strangers) > MAX_STRANGERS:
                    _hang_up(self._strangers.popleft())
            threading.Thread(target=self._serve, args=(sock,), name="lwcc-store-peer", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._welcome(sock):
                while True:
                    self._answer(sock, *_recv_frame(sock))
        except OSError:
            pass  # gone, silent too long, or not speaking the protocol: dropped; nobody else is affected
        finally:
            with self._changed:
                self._connections.discard(sock)
                if sock in self._strangers:
                    self._strangers.remove(sock)
            sock.close()

    def _welcome(self, sock: socket.socket) -> bool:
        deadline = time.monotonic() + HANDSHAKE_S
        nonce = os.urandom(_NONCE_NBYTES)
        sock.settimeout(HANDSHAKE_S)
        sock.sendall(_MAGIC + nonce)
        if _recv_exact(sock, len(_MAGIC), deadline) != _MAGIC:
            return False
        theirs = _recv_exact(sock, _NONCE_NBYTES, deadline)
        proof = _recv_exact(sock, hashlib.sha256().digest_size, deadline)
        if not hmac.compare_digest(proof, _proof(self._secret, b"client", nonce, theirs)):
            return False
        sock.sendall(_proof(self._secret, b"server", nonce, theirs))
        sock.settimeout(None)
        with self._changed:
            if sock in self._strangers:
                self._strangers.remove(sock)
        return True

    def _answer(self, sock: socket.socket, op: int, body: bytes) -> None:
        key, rest = _unpack_key(body)
        try:
            if op == _SET:
                self.set(key, rest)
                _send_frame(sock, _OK, b"")
            elif op == _TRY_GET or (op == _GET and len(rest) == 8):
                wait_s = struct.unpack("!d", rest)[0] if op == _GET else 0.0
                value = self._wait(key, wait_s)
                _send_frame(sock, _ABSENT if value is None else _OK, value or b"")
            elif op == _ADD and len(rest) == 8:
                _send_frame(sock, _OK, b"%d" % self.add(key, struct.unpack("!q", rest)[0]))
            else:
                raise ConnectionError(f"store: unknown request {op}")
        except ValueError as error:
            _send_frame(sock, _REFUSED, str(error).encode())

    def _wait(self, key: str, wait_s: float) -> bytes | None:
        wait_s = wait_s if 0.0 <= wait_s <= WAIT_SLICE_S else WAIT_SLICE_S
        with self._changed:
            self._changed.wait_for(lambda: key in self._data or self._closed, wait_s)
            return self._data.get(key)


def _hang_up(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # never connected, or already gone: what we wanted


class StoreClient:
    """Client of a StoreServer. Methods may be called from any thread; a call that waits holds up no other.

    Each call borrows a connection of its own from a pool, and opens one if none is idle. After a fork the child starts
    with an empty pool. Raises ConnectionError if the server cannot be reached, does not know the secret, or went away.
    """

    def __init__(self, host: str, port: int, secret: bytes, connect_timeout: float = 10.0) -> None:
        self._address = (host, port)
        self._secret = _check_secret(secret)
        self._connect_timeout = connect_timeout
        self._lock = threading.Lock()  # guards the rest
        self._idle: collections.deque[socket.socket] = collections.deque()
        self._pid = os.getpid()
        self._closed = False
        self._give_back(self._connect())

    def set(self, key: str, value: bytes) -> None:
        """Set key to value. Raises ValueError past the limits."""
        self._call(_SET, _pack_key(key) + _check_value(key, value))

    def get(self, key: str, timeout: float) -> bytes:
        """Wait up to timeout seconds until key is present. Raises TimeoutError naming the key.

        A server whose host has vanished is given up after as long again, at least 1 s and at most ANSWER_S.
        """
        deadline = time.monotonic() + timeout
        patience = min(ANSWER_S, max(1.0, timeout))
        while True:
            wait_s = min(max(deadline - time.monotonic(), 0.0), WAIT_SLICE_S)
            value = self._call(_GET, _pack_key(key) + struct.pack("!d", wait_s), wait_s + patience)
            if value is not None:
                return value
            if time.monotonic() >= deadline:
                raise TimeoutError(f"store: key {key!r} did not appear within {timeout:g} s")

    def try_get(self, key: str) -> bytes | None:
        """The key's value, or None; does not wait for it."""
        return self._call(_TRY_GET, _pack_key(key))

    def add(self, key: str, n: int) -> int:
        """Add n to the number stored under key (absent: 0), atomically; returns the sum. ValueError if no number."""
        return int(self._call(_ADD, _pack_key(key) + struct.pack("!q", n)) or b"0")

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

    def _call(self, op: int, body: bytes, answer_s: float = ANSWER_S) -> bytes | None:
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
        if status == _REFUSED:
            raise ValueError(answer.decode("utf-8", "replace"))
        return answer if status == _OK else None

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
        if _recv_exact(sock, len(_MAGIC), deadline) != _MAGIC:
            raise ConnectionError("it is not a rendezvous store")
        theirs = _recv_exact(sock, _NONCE_NBYTES, deadline)
        nonce = os.urandom(_NONCE_NBYTES)
        sock.sendall(_MAGIC + nonce + _proof(self._secret, b"client", theirs, nonce))
        proof = _recv_exact(sock, hashlib.sha256().digest_size, deadline)
        if not hmac.compare_digest(proof, _proof(self._secret, b"server", theirs, nonce)):
            raise ConnectionError("it does not know the secret")

    def _where(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"
