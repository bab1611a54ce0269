"""Becomes a rank that an MPI's launcher started: ``python -I -S mpirank.py COMMAND...``

Says in LWCC's, torch.distributed's and Horovod's variables what the MPI says in its own, then replaces itself by the
command. Stands alone: it is run as a file and must start fast.
"""

import os
import sys

_NUMBERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
_NAMES = (
    ("LWCC_RANK", "LWCC_SIZE", "LWCC_LOCAL_RANK", "LWCC_LOCAL_SIZE"),
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
)


def _translate() -> None:
    for proof in _NUMBERS:
        if proof[0] in os.environ:
            values = [os.environ[proof[0]], os.environ[proof[1]]]
            values += [os.environ.get(proof[2], values[0]), os.environ.get(proof[3], values[1])]
            for names in _NAMES:
                os.environ.update(zip(names, values))
            return
    os.write(2, b"lwccrun: the MPI's launcher gave this process no rank (neither OMPI_COMM_WORLD_RANK nor PMI_RANK)\n")
    os._exit(70)


if __name__ == "__main__":
    _translate()
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        os.write(2, f"lwccrun: cannot run {sys.argv[1]!r}: {error.strerror}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)
