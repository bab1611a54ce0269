"""Becomes a rank: ``python -I -S shim.py LAUNCHER_PID COMMAND...``, run as the leader of its own session.

Asks the kernel to kill this process when the launcher dies, then replaces itself by the command. Stands alone: it is
run as a file and must start fast.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def _die_with(launcher_pid: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != launcher_pid:  # it died before the kernel knew our wish
        os._exit(137)


def _become(command: "list[str]") -> None:
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these two, and exec would pass that on
        signal.signal(signum, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"lwccrun: cannot run {command[0]!r}: {error.strerror}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    _die_with(int(sys.argv[1]))
    _become(sys.argv[2:])
