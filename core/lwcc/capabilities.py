"""What Horovod's scripts ask about its build. LWCC brings its own transports; nothing else is built in."""

from __future__ import annotations


def mpi_built() -> bool:
    """Tell whether collectives go through MPI: never."""
    return False


def mpi_enabled() -> bool:
    """As `mpi_built`."""
    return False


def mpi_threads_supported() -> bool:
    """As `mpi_built`."""
    return False


def gloo_built() -> bool:
    """Tell whether collectives work without MPI, which is what scripts mean by this: always."""
    return True


def gloo_enabled() -> bool:
    """As `gloo_built`."""
    return True


def nccl_built() -> int:
    """Return the version of NCCL: 0, there is none."""
    return 0


def ddl_built() -> bool:
    """Tell whether IBM's DDL is there: never."""
    return False


def ccl_built() -> bool:
    """Tell whether oneCCL is there: never."""
    return False


def cuda_built() -> bool:
    """Tell whether tensors in GPU memory are supported: not here."""
    return False


def rocm_built() -> bool:
    """As `cuda_built`."""
    return False
