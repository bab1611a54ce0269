"""The rendezvous store's server: one thread, one selector, however many ranks. Speaks the protocol of store.py.

A peer costs a socket and a few hundred bytes. What many wait for is made once and sent to all. Whoever does not prove
within HANDSHAKE_S that it knows the job's secret is dropped, and named.
"""

from __future__ import annotations

import collections
import contextlib
import heapq
import hmac
import itertools
import os
import selectors
import socket
import struct
import threading
import time
from typing import Callable

from lwcc.launcher import store as wire
from lwcc.launcher.nics import listen

MAX_STRANGERS = 4096  # connections that have not authenticated; past this the oldest is dropped
HANDSHAKE_S = 5.0
MAX_NAMED = 5  # strangers that are told of; a port scan shall not fill the screen
MAX_TOTAL_NBYTES = 512 << 20
_PROOF_NBYTES = len(wire.MAGIC) + wire.NONCE_NBYTES + 32
_READ_NBYTES = 1 << 16


class _Stranger(ConnectionError):
    """A peer that is not of this job. The text says why."""


class _Peer:
    """One connection. `known`: it has shown the secret. `waits`: when its open request is answered with "absent"."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        self.sock, self.name = sock, name
        self.nonce = os.urandom(wire.NONCE_NBYTES)
        self.known = False
        self.inbox = bytearray()
        self.outbox: collections.deque[memoryview] = collections.deque()
        self.waits = 0.0  # monotonic; 0: nothing open
        self.absent: Callable[[], bytes] = bytes  # what is said then
        self.wanted: str = ""  # the key or, of a gathering, the prefix that it waits for


class _Gathering:
    """Many keys that peers want at once: prefix/0 to prefix/count-1."""

    def __init__(self, prefix: str, count: int, data: dict[str, bytes]) -> None:
        self.keys = [f"{prefix}/{i}" for i in range(count)]
        self.missing = {key: i for i, key in enumerate(self.keys) if key not in data}
        self.peers: set[_Peer] = set()

    def which(self) -> bytes:
        """The numbers that are missing, packed."""
        numbers = sorted(self.missing.values())
        return struct.pack(f"!{len(numbers)}I", *numbers)


class StoreServer:
    """The store itself. Listens at once; serves until close(). All methods may be called from any thread.

    host: an address or a name; "*": all addresses of this machine, IPv4 and IPv6. secret: 32 bytes. on_stranger: told,
    on the server's thread, of whom it has dropped. Raises OSError if the address cannot be bound, ValueError for a
    secret of another length.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        secret: bytes = b"",
        on_stranger: Callable[[str], None] | None = None,
    ) -> None:
        self._secret = wire.check_secret(secret)
        self._data: dict[str, bytes] = {}
        self._total_nbytes = 0
        self._changed = threading.Condition()  # guards data, total, fresh, closed
        self._fresh: list[str] = []  # keys that were set and whose waiting peers have not been served
        self._closed = False
        self._on_stranger = on_stranger
        self._named = 0
        # below: the server's thread alone
        self._selector = selectors.DefaultSelector()
        self._strangers: collections.OrderedDict[_Peer, None] = collections.OrderedDict()
        self._waiting: dict[str, set[_Peer]] = {}
        self._gatherings: dict[tuple[str, int], _Gathering] = {}
        self._due: list[tuple[float, int, _Peer]] = []
        self._order = itertools.count()
        self._listener = listen(host, port)
        self._listener.setblocking(False)
        self.host: str = host
        self.port: int = self._listener.getsockname()[1]
        self._wake_read, self._wake = socket.socketpair()
        for sock in (self._wake_read, self._wake):
            sock.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._loop, name="lwcc-store", daemon=True)
        self._thread.start()

    def set(self, key: str, value: bytes) -> None:
        """Set key. Raises ValueError past the limits of one value or of the whole store."""
        wire.pack_key(key)
        value = wire.check_value(key, value)
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
        wire.pack_key(key)
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
            self._closed = True
            self._changed.notify_all()
        self._ring()
        if threading.current_thread() is not self._thread:
            self._thread.join(10)

    def _set_locked(self, key: str, value: bytes) -> None:
        total = self._total_nbytes + len(value) - len(self._data.get(key, b""))
        if total > MAX_TOTAL_NBYTES:
            raise ValueError(f"store: full, {key!r} would make {total} bytes of at most {MAX_TOTAL_NBYTES}")
        self._total_nbytes = total
        self._data[key] = value
        self._fresh.append(key)
        self._changed.notify_all()
        self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # full: it will wake anyway; closed: it has ended
            self._wake.send(b"x")

    # ---- the server's thread ----

    def _loop(self) -> None:
        try:
            while not self._closed:
                wait_s = max(self._due[0][0] - time.monotonic(), 0.0) if self._due else None
                for key, events in self._selector.select(wait_s):
                    if key.data is not None:
                        self._attend(key.data, events)
                    elif key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._wake_read.recv(65536)
                self._serve_fresh()
                self._serve_due()
        finally:
            for key in list(self._selector.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]
            self._wake.close()
            self._selector.close()

    def _accept(self) -> None:
        for _ in range(64):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                time.sleep(0.05)  # out of descriptors: let some go, then try again
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = _Peer(sock, f"{address[0].removeprefix('::ffff:')} port {address[1]}")
            self._selector.register(sock, selectors.EVENT_READ, peer)
            self._strangers[peer] = None
            self._remind(peer, time.monotonic() + HANDSHAKE_S)
            self._send(peer, wire.MAGIC + peer.nonce)
            if len(self._strangers) > MAX_STRANGERS:
                self._drop(next(iter(self._strangers)), "was one of too many that said nothing")

    def _attend(self, peer: _Peer, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(peer)
            if events & selectors.EVENT_READ:
                data = peer.sock.recv(_READ_NBYTES)
                if not data:
                    self._drop(peer, "")
                    return
                peer.inbox += data
                self._read(peer)
        except BlockingIOError:
            pass
        except _Stranger as error:
            self._drop(peer, str(error))
        except OSError:  # gone, or not the protocol; nobody else is affected
            self._drop(peer, "")

    def _read(self, peer: _Peer) -> None:
        if not peer.known and not self._check_proof(peer):
            return
        while not peer.waits and len(peer.inbox) >= 4:
            (nbytes,) = struct.unpack_from("!I", peer.inbox)
            if not 1 <= nbytes <= wire.MAX_FRAME_NBYTES:
                raise ConnectionError(f"store: a frame of {nbytes} bytes")
            if len(peer.inbox) < 4 + nbytes:
                return
            frame = bytes(peer.inbox[4 : 4 + nbytes])
            del peer.inbox[: 4 + nbytes]
            self._answer(peer, frame[0], frame[1:])

    def _check_proof(self, peer: _Peer) -> bool:
        """Has the peer shown the secret? False: not yet. Raises _Stranger if it has shown something else."""
        n = min(len(peer.inbox), len(wire.MAGIC))
        if peer.inbox[:n] != wire.MAGIC[:n]:
            raise _Stranger("speaks another protocol")
        if len(peer.inbox) < _PROOF_NBYTES:
            return False
        theirs = bytes(peer.inbox[len(wire.MAGIC) : len(wire.MAGIC) + wire.NONCE_NBYTES])
        proof = bytes(peer.inbox[len(wire.MAGIC) + wire.NONCE_NBYTES : _PROOF_NBYTES])
        if not hmac.compare_digest(proof, wire.proof(self._secret, b"client", peer.nonce, theirs)):
            raise _Stranger("does not know the job's secret")
        del peer.inbox[:_PROOF_NBYTES]
        peer.known = True
        self._strangers.pop(peer, None)
        self._send(peer, wire.proof(self._secret, b"server", peer.nonce, theirs))
        return True

    def _answer(self, peer: _Peer, op: int, body: bytes) -> None:
        key, rest = wire.unpack_key(body)
        try:
            if op == wire.SET:
                self.set(key, rest)
                self._reply(peer, wire.OK, b"")
            elif op == wire.TRY_GET or (op == wire.GET and len(rest) == 8):
                self._answer_get(peer, key, struct.unpack("!d", rest)[0] if op == wire.GET else 0.0)
            elif op == wire.ADD and len(rest) == 8:
                self._reply(peer, wire.OK, b"%d" % self.add(key, struct.unpack("!q", rest)[0]))
            elif op == wire.GATHER and len(rest) == 12:
                count, wait_s = struct.unpack("!Id", rest)
                self._answer_gather(peer, key, min(count, wire.MAX_GATHERED), wait_s)
            else:
                raise ConnectionError(f"store: unknown request {op}")
        except ValueError as error:
            self._reply(peer, wire.REFUSED, str(error).encode())

    def _answer_get(self, peer: _Peer, key: str, wait_s: float) -> None:
        value = self.try_get(key)
        if value is not None:
            self._reply(peer, wire.OK, value)
        elif wait_s <= 0.0:
            self._reply(peer, wire.ABSENT, b"")
        else:
            self._waiting.setdefault(key, set()).add(peer)
            self._wait(peer, key, wait_s)
            peer.absent = bytes

    def _answer_gather(self, peer: _Peer, prefix: str, count: int, wait_s: float) -> None:
        name = (prefix, count)
        gathering = self._gatherings.get(name)
        if gathering is None:
            self._serve_fresh()  # so that no key that is there already counts as one to come
            with self._changed:
                gathering = _Gathering(prefix, count, self._data)
            self._gatherings[name] = gathering
        gathering.peers.add(peer)
        self._wait(peer, prefix, wait_s)
        peer.absent = gathering.which
        if not gathering.missing:
            self._hand_out(name)

    def _wait(self, peer: _Peer, wanted: str, wait_s: float) -> None:
        wait_s = wait_s if 0.0 <= wait_s <= wire.WAIT_SLICE_S else wire.WAIT_SLICE_S
        peer.wanted = wanted
        peer.waits = time.monotonic() + wait_s
        self._remind(peer, peer.waits)

    def _remind(self, peer: _Peer, when: float) -> None:
        heapq.heappush(self._due, (when, next(self._order), peer))

    def _serve_fresh(self) -> None:
        with self._changed:
            fresh, self._fresh = self._fresh, []
        for key in fresh:
            for peer in self._waiting.pop(key, ()):
                self._end_wait(peer, wire.OK, self._data[key])
            for name, gathering in list(self._gatherings.items()):
                if gathering.missing.pop(key, None) is not None and not gathering.missing:
                    self._hand_out(name)

    def _hand_out(self, name: tuple[str, int]) -> None:
        """Everything that was wanted is there: one answer, made once."""
        gathering = self._gatherings.pop(name)
        with self._changed:
            values = [self._data[key] for key in gathering.keys]
        body = b"".join(struct.pack("!I", len(value)) + value for value in values)
        status = wire.OK
        if len(body) >= wire.MAX_FRAME_NBYTES:
            status, body = (
                wire.REFUSED,
                f"store: {len(values)} values of {len(body)} bytes are too much at once".encode(),
            )
        for peer in gathering.peers:
            self._end_wait(peer, status, body)

    def _serve_due(self) -> None:
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            _, _, peer = heapq.heappop(self._due)
            if peer in self._strangers:
                self._drop(peer, f"said nothing that we know for {HANDSHAKE_S:g} s")
            elif peer.waits and peer.waits <= now:
                body = peer.absent()
                self._forget_wait(peer)
                self._end_wait(peer, wire.ABSENT, body)

    def _forget_wait(self, peer: _Peer) -> None:
        waiting = self._waiting.get(peer.wanted, set())
        waiting.discard(peer)
        if not waiting:
            self._waiting.pop(peer.wanted, None)
        for name in [name for name in self._gatherings if name[0] == peer.wanted]:
            self._gatherings[name].peers.discard(peer)
            if not self._gatherings[name].peers:
                del self._gatherings[name]

    def _end_wait(self, peer: _Peer, status: int, body: bytes) -> None:
        peer.waits = 0.0
        try:
            self._reply(peer, status, body)
            if peer.inbox:
                self._read(peer)
        except OSError:
            self._drop(peer, "")

    def _reply(self, peer: _Peer, status: int, body: bytes) -> None:
        self._send(peer, struct.pack("!IB", len(body) + 1, status))
        if body:
            self._send(peer, body)

    def _send(self, peer: _Peer, data: bytes) -> None:
        peer.outbox.append(memoryview(data))
        if len(peer.outbox) == 1:
            self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        while peer.outbox:
            try:
                sent = peer.sock.send(peer.outbox[0])
            except BlockingIOError:
                break
            except OSError:  # the read side notices it and drops the peer
                peer.outbox.clear()
                return
            peer.outbox[0] = peer.outbox[0][sent:]
            if not peer.outbox[0]:
                peer.outbox.popleft()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.outbox else 0)
        if self._selector.get_key(peer.sock).events != wanted:
            self._selector.modify(peer.sock, wanted, peer)

    def _drop(self, peer: _Peer, why: str) -> None:
        self._strangers.pop(peer, None)
        self._forget_wait(peer)
        peer.waits = 0.0
        with contextlib.suppress(KeyError, ValueError):  # dropped already
            self._selector.unregister(peer.sock)
        peer.sock.close()
        if why and self._on_stranger is not None:
            self._named += 1
            if self._named <= MAX_NAMED:
                more = "; later ones are not told" if self._named == MAX_NAMED else ""
                self._on_stranger(f"the rendezvous dropped {peer.name}, which {why}{more}")
