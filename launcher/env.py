"""Which variables each rank gets. Pure: the caller's environment comes in as a mapping."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

SECRET_NAME = "LWCC_SECRET"

# Other launchers' variables about *this* process: under lwccrun they would tell a rank a second, wrong story.
_STALE = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "GROUP_RANK",
    "ROLE_RANK",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "PMI_FD",
)


@dataclass(frozen=True)
class Meeting:
    """Where the ranks of this job meet. secret: 32 bytes, hexadecimal; it must never reach a command line or a log."""

    rendezvous: str
    secret: str
    master_addr: str
    master_port: int
    job_id: str
    hostname: str


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_threads(base: Mapping[str, str], extra: Mapping[str, str], size: int) -> int | None:
    """The OMP_NUM_THREADS that ranks get, or None if the user has set it."""
    if "OMP_NUM_THREADS" in base or "OMP_NUM_THREADS" in extra:
        return None
    return max(1, cores() // size)


def rank_variables(rank: int, size: int, meeting: Meeting) -> dict[str, str]:
    """What says to a rank who it is: for LWCC, for torch.distributed, and for scripts that read Horovod's names."""
    r, n = str(rank), str(size)
    return {
        "LWCC_RANK": r,
        "LWCC_SIZE": n,
        "LWCC_LOCAL_RANK": r,
        "LWCC_LOCAL_SIZE": n,
        "LWCC_RENDEZVOUS": meeting.rendezvous,
        SECRET_NAME: meeting.secret,
        "LWCC_GENERATION": "0",
        "LWCC_JOB_ID": meeting.job_id,
        "RANK": r,
        "WORLD_SIZE": n,
        "LOCAL_RANK": r,
        "LOCAL_WORLD_SIZE": n,
        "MASTER_ADDR": meeting.master_addr,
        "MASTER_PORT": str(meeting.master_port),
        "HOROVOD_RANK": r,
        "HOROVOD_SIZE": n,
        "HOROVOD_LOCAL_RANK": r,
        "HOROVOD_LOCAL_SIZE": n,
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_HOSTNAME": meeting.hostname,
    }


def rank_environment(
    base: Mapping[str, str], extra: Mapping[str, str], rank: int, size: int, meeting: Meeting
) -> dict[str, str]:
    """The whole environment of a rank: base, then our defaults, then extra (flags and -x), then who it is."""
    env = {name: value for name, value in base.items() if name not in _STALE}
    env.setdefault("PYTHONUNBUFFERED", "1")  # into a pipe Python writes late, and a killed rank never
    threads = default_threads(base, extra, size)
    if threads is not None:
        env["OMP_NUM_THREADS"] = str(threads)
    env.update(extra)
    env.update(rank_variables(rank, size, meeting))
    return env


def without_secret(env: Mapping[str, str]) -> dict[str, str]:
    """env as it may be shown and stored."""
    return {name: "(hidden)" if name == SECRET_NAME else value for name, value in env.items()}
