"""A node of `--net`: ``python -I -S netnode.py LAUNCHER_PID NAME SECONDS``.

Holds its namespaces until the launcher ends. Then, also if the launcher was killed, it kills what still runs on the
node, as an MPI's daemons do in sessions of their own; for at most SECONDS. Stands alone: it is run as a file and must
start fast.
"""

import contextlib
import ctypes
import os
import signal
import socket
import sys
import time

_CLONE_NEWUTS, _CLONE_NEWNET = 0x04000000, 0x40000000


def _others() -> "list[int]":
    mine, found = os.readlink("/proc/self/ns/net"), []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and int(name) != os.getpid() and os.readlink(f"/proc/{name}/ns/net") == mine:
                found.append(int(name))
        except OSError:
            pass  # it has ended, or is not ours to see
    return found


def _clear(limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        left = _others()
        if not left:
            return
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


if __name__ == "__main__":
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # the launcher is still at work then
    if os.getppid() != int(sys.argv[1]) or ctypes.CDLL(None).unshare(_CLONE_NEWUTS | _CLONE_NEWNET):
        sys.exit(1)
    socket.sethostname(sys.argv[2])
    os.write(1, b"ready\n")
    os.read(0, 1)  # until the launcher closes the pipe, or dies
    _clear(float(sys.argv[3]))
