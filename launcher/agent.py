"""The launcher's hand on another host: ``python -m lwcc.launcher.agent``, stdin and stdout being a line to lwccrun.

Lines of JSON both ways, ours with a mark in front, since a login may print. First comes a probe: is this host fit, and
where does it reach the rendezvous? Then the ranks are started and relayed. When the line ends, or lwccrun says nothing
for too long, the ranks are killed: they do not outlive their launcher.
"""

from __future__ import annotations

import base64
import json
import os
import select
import selectors
import signal
import socket
import sys
import threading
import time
from typing import Any

from lwcc.launcher import info
from lwcc.launcher.env import rank_base
from lwcc.launcher.output import Screen, Stream
from lwcc.launcher.spawn import DRAIN_S, LINGER_S, LocalRank, Watchdog, start_process
from lwcc.launcher.store import StoreClient

MARK = b"lwcc-agent "
_READ_NBYTES = 1 << 16
_REACH_S = 5.0


def probe(wanted: dict[str, Any]) -> dict[str, Any]:
    """What lwccrun must know before it starts ranks here."""
    problems = []
    try:
        os.chdir(wanted["cwd"])
    except OSError as error:
        problems.append(f"the folder {wanted['cwd']} is not there: {error.strerror}")
    if not problems and wanted["script"] and not os.path.exists(wanted["script"]):
        problems.append(f"no such script: {wanted['script']} (in {wanted['cwd']})")
    with socket.socket() as sock:
        sock.bind(("", 0))
        free = sock.getsockname()[1]
    return {
        "op": "ready",
        "python": sys.version.split()[0],
        "version": info.version(),
        "host": socket.gethostname(),
        "problems": problems,
        "reached": _reach(wanted["addresses"], wanted["port"], bytes.fromhex(wanted["secret"])),
        "port": free,
    }


def _reach(addresses: list[str], port: int, secret: bytes) -> dict[str, str]:
    """Those of lwccrun's addresses where its store answers, each with our own address on the way there."""
    found: dict[str, str] = {}

    def attempt(address: str) -> None:
        try:
            client = StoreClient(address, port, secret, connect_timeout=_REACH_S)
            found[address] = client.own_address()
            client.close()
        except OSError:
            pass  # not a way: the answer lists the others

    threads = [threading.Thread(target=attempt, args=(address,), daemon=True) for address in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_REACH_S + 1)
    return dict(found)


class Agent:
    """One loop over the line, the ranks' pipes and their ends."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ, "line")
        self._pending = b""
        self._ranks: dict[int, LocalRank] = {}
        self._watchdog = Watchdog()
        self._limit_s = 0.0  # of lwccrun's silence; 0: none yet
        self._heard = self._said = time.monotonic()
        self._done: set[int] = set()  # ranks of which nothing is left
        os.set_blocking(1, False)

    def run(self) -> None:
        """Serve until the line ends or is silent for too long."""
        wake_read, wake_write = socket.socketpair()
        for sock in (wake_read, wake_write):
            sock.setblocking(False)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(wake_read, selectors.EVENT_READ, wake_read)
        try:
            while self._turn():
                pass
        except BrokenPipeError:
            pass  # nobody listens
        finally:
            for rank in self._ranks.values():
                rank.close()
            self._watchdog.end()

    def _send(self, message: dict[str, Any]) -> None:
        """Say something to lwccrun. Raises BrokenPipeError if nobody listens any more."""
        view = memoryview(MARK + json.dumps(message).encode() + b"\n")
        while view:
            try:
                view = view[os.write(1, view) :]
            except BlockingIOError:
                if self._is_forsaken():
                    raise BrokenPipeError from None
                select.select([], [1], [], 1.0)

    def _is_forsaken(self) -> bool:
        return self._limit_s > 0 and time.monotonic() >= self._heard + self._limit_s

    def _turn(self) -> bool:
        for key, _ in self._selector.select(self._patience()):
            if key.data == "line":
                if not self._take_line():
                    return False
            elif isinstance(key.data, tuple):
                self._relay(key.fd, *key.data)
            else:
                key.data.recv(4096)
        self._note_ends()
        now = time.monotonic()
        if self._limit_s and now >= self._said + self._limit_s / 4:
            self._said = now
            self._send({"op": "alive"})
        return not self._is_forsaken()

    def _patience(self) -> float | None:
        if any(rank.died is not None and rank.rank not in self._done for rank in self._ranks.values()):
            return 0.02
        return self._limit_s / 4 if self._limit_s else None

    def _take_line(self) -> bool:
        data = os.read(0, _READ_NBYTES)
        self._heard = time.monotonic()
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._obey(json.loads(line))
        return bool(data)

    def _obey(self, message: dict[str, Any]) -> None:
        op = message["op"]
        if op == "probe":
            self._send(probe(message))
        elif op == "start":
            self._limit_s = message["silence"]
            self._start(message)
        elif op == "signal" and message["rank"] in self._ranks:
            rank = self._ranks[message["rank"]]
            if message["group"]:
                rank.signal_group(message["signum"])
            elif rank.died is None:
                rank.signal(message["signum"])
        elif op == "pause":  # lwccrun itself is stopped, and will say nothing until it continues
            self._heard = float("inf")

    def _start(self, message: dict[str, Any]) -> None:
        base = {**rank_base(os.environ), **message["env"]}
        screen = Screen()
        for number, own in message["ranks"]:
            try:
                process = start_process(message["command"], {**base, **own}, with_stdin=False)
            except OSError as error:
                self._send({"op": "failed", "rank": number, "why": f"could not be started: {error}"})
                continue
            streams = (Stream(screen, 0, None, shown=False), Stream(screen, 1, None, shown=False))
            rank = LocalRank(number, "", process, streams)
            self._ranks[number] = rank
            self._watchdog.watch(rank.pid)
            for which, fd in enumerate(rank.open_pipes()):
                self._selector.register(fd, selectors.EVENT_READ, (number, which))
            self._send({"op": "started", "rank": number, "pid": rank.pid})

    def _relay(self, fd: int, number: int, which: int) -> None:
        try:
            data = os.read(fd, _READ_NBYTES)
        except BlockingIOError:
            return
        if data:
            text = base64.b64encode(data).decode()
            self._send({"op": "output", "rank": number, "which": which, "data": text})
        else:
            self._selector.unregister(fd)
            self._send({"op": "eof", "rank": number, "which": which})

    def _note_ends(self) -> None:
        """Tell ends; give what a rank left in its group a moment, then kill it and close the pipes."""
        now = time.monotonic()
        for rank in self._ranks.values():
            if rank.reap():
                self._send({"op": "ended", "rank": rank.rank, "status": rank.status})
            if rank.died is None or rank.rank in self._done:
                continue
            reading = [fd for fd in rank.open_pipes() if fd in self._selector.get_map()]
            if now >= rank.died + LINGER_S:
                rank.signal_group(signal.SIGKILL)
            if (not rank.group_alive() and not reading) or now >= rank.died + LINGER_S + DRAIN_S:
                for fd in reading:
                    self._selector.unregister(fd)
                rank.group_gone = True
                self._done.add(rank.rank)
                self._watchdog.forget(rank.pid)
                self._send({"op": "gone", "rank": rank.rank})


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(
            number, lambda *_: None
        )  # lwccrun decides, or the end of the line; ranks must not inherit SIG_IGN
    Agent().run()
