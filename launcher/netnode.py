"""A node of `--net`: ``python -I -S netnode.py LAUNCHER_PID NAME``. Holds its namespaces until the launcher ends.

Stands alone: it is run as a file and must start fast.
"""

import ctypes
import os
import signal
import socket
import sys

_PR_SET_PDEATHSIG = 1
_CLONE_NEWUTS, _CLONE_NEWNET = 0x04000000, 0x40000000

if __name__ == "__main__":
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # the launcher is still at work then
    if os.getppid() != int(sys.argv[1]) or libc.unshare(_CLONE_NEWUTS | _CLONE_NEWNET):
        sys.exit(1)
    socket.sethostname(sys.argv[2])
    os.write(1, b"ready\n")
    os.read(0, 1)  # until the launcher closes the pipe, or dies
