"""Is a rank that an MPI's launcher started: ``python -I -S mpirank.py FOLDER COMMAND...``

Says in LWCC's, torch.distributed's and Horovod's variables what the MPI says in its own, and runs the command as its
child, in its own process group, to which the MPI sends its signals. The child's output goes to lwccrun itself, through
the pipes out-N and err-N in FOLDER, so that ranks can be told apart; when it started and how it ended goes there as a
line of the pipe "ends" (see mpicrew.py). Stands alone: it is run as a file and must start fast.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_NUMBERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
_NAMES = (
    ("LWCC_RANK", "LWCC_SIZE", "LWCC_LOCAL_RANK", "LWCC_LOCAL_SIZE"),
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
)
_OF_THE_GROUP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def _translate() -> str:
    for proof in _NUMBERS:
        if proof[0] in os.environ:
            values = [os.environ[proof[0]], os.environ[proof[1]]]
            values += [os.environ.get(proof[2], values[0]), os.environ.get(proof[3], values[1])]
            for names in _NAMES:
                os.environ.update(zip(names, values))
            return values[0]
    os.write(2, b"lwccrun: the MPI's launcher gave this process no rank (neither OMPI_COMM_WORLD_RANK nor PMI_RANK)\n")
    os._exit(70)


def _become(command: "list[str]", parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(137)
    for signum in (*_OF_THE_GROUP, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"lwccrun: cannot run {command[0]!r}: {error.strerror}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _tell(ends: int, line: str) -> None:
    try:
        os.write(ends, line.encode() + b"\n")
    except OSError:
        pass  # lwccrun is gone, and so is everybody soon


def _run(rank: str, folder: str, command: "list[str]") -> int:
    ends = os.open(os.path.join(folder, "ends"), os.O_WRONLY)
    for fd, name in ((1, "out"), (2, "err")):
        pipe = os.open(os.path.join(folder, f"{name}-{rank}"), os.O_WRONLY)
        os.dup2(pipe, fd)
        os.close(pipe)
    for signum in _OF_THE_GROUP:
        signal.signal(signum, lambda *_: None)
    parent, child = os.getpid(), os.fork()
    if child == 0:
        _become(command, parent)
    _tell(ends, f"{rank} started {child}")
    status = os.WEXITSTATUS(code) if os.WIFEXITED(code := os.waitpid(child, 0)[1]) else -os.WTERMSIG(code)
    _tell(ends, f"{rank} ended {status}")
    return status


if __name__ == "__main__":
    end = _run(_translate(), sys.argv[1], sys.argv[2:])
    if end < 0:  # so that the MPI sees the same end
        signal.signal(-end, signal.SIG_DFL) if -end not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -end)
    os._exit(end if end >= 0 else 128 - end)
