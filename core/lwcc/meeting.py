"""Where ranks meet whom lwccrun has not started: rank 0 serves, and what their launcher offers tells the others where.

Slurm names the first node. MPICH and Intel MPI have a board of their own (PMI), which reaches every host. Open MPI has
one that needs its library, so a file tells it, which only its owner can read, in a folder that the hosts share.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import secrets
import select
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Optional

from lwcc.errors import LwccError, SystemFailure, Timeout
from lwcc.launchers import Place, parse_address, parse_secret

_ADVICE = "Set MASTER_ADDR and MASTER_PORT (a host all ranks reach, where rank 0 runs, and a free port on it)"
_settled: dict[tuple[str, str, int], Place] = {}  # of this process's jobs: a second init meets at the same place
_servers: list[Any] = []  # rank 0's stores live as long as the process


def settle(place: Place, timeout: float) -> Place:
    """Return the place with host and port of the meeting point; as it is, unless only the launcher can tell them.

    Raises:
        LwccError: there is no way to learn the address; the text says what to set.
        Timeout: rank 0 has not told its address.
    """
    if place.scheme not in ("slurm", "file", "pmi"):
        return place
    key = (place.scheme, place.host, place.generation)
    if key not in _settled:
        if place.scheme == "slurm":
            _settled[key] = place._replace(scheme="master", host=_node_address(place.host))
        else:
            text = (_by_file if place.scheme == "file" else _by_pmi)(place, time.monotonic() + timeout)
            _settled[key] = _choose(place, text)
    return _settled[key]


def _node_address(node: str) -> str:
    """Slurm knows an address where its name for the node is none."""
    try:
        socket.getaddrinfo(node, None)
        return node
    except socket.gaierror:
        pass
    try:
        told = subprocess.run(
            ["scontrol", "show", "node", "-o", node], capture_output=True, text=True, timeout=20, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        told = ""
    found = [word[len("NodeAddr=") :] for word in told.split() if word.startswith("NodeAddr=")]
    if found:
        return found[0]
    raise LwccError(f"lwcc: the name of Slurm's node {node} has no address, and scontrol tells none. {_ADVICE}")


def _serve(place: Place) -> str:
    """Serve the rendezvous on this rank; return what the others must know: addresses and secret."""
    from lwcc.launcher.nics import addresses
    from lwcc.launcher.server import StoreServer

    secret = secrets.token_bytes(32)
    try:
        server = StoreServer(place.listen, 0, secret, on_stranger=tell_of_stranger)
    except OSError as error:
        raise SystemFailure(f"lwcc: rank 0 cannot serve the rendezvous on {place.listen}: {error}") from error
    _servers.append(server)
    hosts = [place.listen] if place.listen != "0.0.0.0" else [nic.address for nic in addresses()] or ["127.0.0.1"]
    told = [f"{host}:{server.port}" for host in hosts if ":" not in host]
    return ",".join(told[:16]) + ";" + secret.hex()


def tell_of_stranger(text: str) -> None:
    """Say whom the rendezvous that this rank serves has dropped."""
    sys.stderr.write(f"lwcc: {text}\n")


def _choose(place: Place, text: str) -> Place:
    """The first of the addresses at which somebody who knows the secret answers."""
    from lwcc.launcher.store import StoreClient

    places, _, secret = text.partition(";")
    failures = []
    for address in places.split(","):
        host, port = parse_address(address, "the address that rank 0 told")
        try:
            StoreClient(host, port, parse_secret(secret), connect_timeout=3.0).close()
        except ConnectionError as error:
            failures.append(str(error))
            continue
        return place._replace(scheme="lwcc", host=host, port=port, secret=parse_secret(secret))
    raise LwccError(f"lwcc: rank {place.rank} reaches rank 0 at none of {places}: {failures[0]}. {_ADVICE}")


# ---- by a file ----


def _by_file(place: Place, deadline: float) -> str:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(home, "lwcc")
    path = folder / ("meet-" + hashlib.sha256(f"{place.host} {place.generation}".encode()).hexdigest()[:32])
    if place.rank == 0:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}")
            text = _serve(place)
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
                file.write(text)
            partial.replace(path)
        except OSError as error:
            raise SystemFailure(f"lwcc: rank 0 cannot tell where it serves: {error}. {_ADVICE}") from error
        atexit.register(path.unlink, missing_ok=True)
        return text
    return _read_file(place, path, deadline)


def _read_file(place: Place, path: Path, deadline: float) -> str:
    """Wait for the file. One that an earlier job has left tells an address where nobody answers."""
    failure: Optional[LwccError] = None
    while time.monotonic() < deadline:
        try:
            with open(path, encoding="ascii") as file:
                state = os.fstat(file.fileno())
                text = file.read(4096)
            if state.st_uid != os.getuid() or stat.S_IMODE(state.st_mode) & 0o077:
                raise SystemFailure(f"lwcc: {path} is not this user's alone; remove it")
            _choose(place, text)
            return text
        except FileNotFoundError:
            pass
        except (LwccError, ValueError) as error:
            if isinstance(error, SystemFailure):
                raise
            failure = LwccError(str(error))
        time.sleep(0.02)
    if failure is not None:
        raise failure
    raise Timeout(
        f"lwcc: rank {place.rank} of {place.size}: rank 0 has not told its address in {path} (by {place.source}). Has "
        f"it called lwcc.init(), and do all hosts share that folder? If they don't: {_ADVICE}"
    )


# ---- by PMI ----


class _Pmi:
    """The process's line to its launcher: one line of words asks, one answers."""

    def __init__(self, fd: int, deadline: float) -> None:
        self._fd, self._deadline = fd, deadline

    def ask(self, line: str, answer: str) -> dict[str, str]:
        """Raises LwccError if the launcher says no or is gone, Timeout."""
        os.write(self._fd, line.encode() + b"\n")
        text = b""
        while not text.endswith(b"\n"):
            if not select.select([self._fd], [], [], max(self._deadline - time.monotonic(), 0))[0]:
                raise Timeout(f"lwcc: the MPI's launcher has not answered {line.split()[0]}; did every rank call init?")
            byte = os.read(self._fd, 1)  # what follows the line is another's
            if not byte:
                raise LwccError("lwcc: the MPI's launcher has closed its line to this rank")
            text += byte
        words = dict(word.partition("=")[::2] for word in text.decode("utf-8", "replace").split())
        if words.get("cmd") != answer or words.get("rc", "0") != "0":
            raise LwccError(f"lwcc: the MPI's launcher answered {line.split()[0]} with {text!r}. {_ADVICE}")
        return words


def _by_pmi(place: Place, deadline: float) -> str:
    pmi = _Pmi(place.port, deadline)
    try:
        pmi.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")
        space = pmi.ask("cmd=get_my_kvsname", "my_kvsname")["kvsname"]
        key = f"lwcc-g{place.generation}"
        if place.rank == 0:
            pmi.ask(f"cmd=put kvsname={space} key={key} value={_serve(place)}", "put_result")
        pmi.ask("cmd=barrier_in", "barrier_out")
        text = pmi.ask(f"cmd=get kvsname={space} key={key}", "get_result")["value"]
    except LwccError:
        raise  # Timeout is an OSError too
    except OSError as error:
        raise LwccError(
            f"lwcc: rank {place.rank} cannot use its line to the MPI's launcher (PMI_FD={place.port}: {error}); a "
            f"process between mpiexec and Python may have closed it. {_ADVICE}"
        ) from error
    atexit.register(_leave_pmi, pmi)
    return text


def _leave_pmi(pmi: _Pmi) -> None:
    """Without a word of leave the launcher takes a rank's end for a crash. An MPI in the process says it itself."""
    module = sys.modules.get("mpi4py.MPI")
    if module is not None and module.Is_initialized():
        return
    pmi._deadline = time.monotonic() + 5
    try:
        pmi.ask("cmd=finalize", "finalize_ack")
    except (OSError, LwccError):
        pass  # the launcher has gone
