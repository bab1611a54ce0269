"""Cleans up after a launcher that got SIGKILL: ``python -I -S watchdog.py``, stdin a pipe from the launcher.

The kernel kills the ranks themselves (see shim.py), but not what they started. The launcher writes ``+PGID`` when a
rank starts and ``-PGID`` when its process group is gone; when the pipe ends, the groups still listed are killed.
Covered: everything in a rank's process group (data loader workers, shells and their children). Not covered: a process
that made a session of its own. Stands alone: it is run as a file and must start fast.
"""

import os
import signal
import sys


def _watch(fd: int) -> None:
    groups = set()
    pending = b""
    while True:
        chunk = os.read(fd, 65536)
        if not chunk:
            break
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            if line[:1] == b"+":
                groups.add(int(line[1:]))
            else:
                groups.discard(int(line[1:]))
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass  # already gone, as it should be


if __name__ == "__main__":
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    _watch(sys.stdin.fileno())
    os._exit(0)
