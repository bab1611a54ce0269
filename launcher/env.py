"""Which variables each rank gets. Pure: the caller's environment comes in as a mapping."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from lwcc.launcher.hosts import Host, used

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
_TRAVELS = re.compile(r"(LWCC|HOROVOD|PYTHON|OMP|MKL|TORCH|TF|NCCL|GLOO|UCX)_?")


@dataclass(frozen=True)
class Meeting:
    """Where the ranks of this job meet. secret: 32 bytes, hexadecimal; it must never reach a command line or a log."""

    rendezvous: str
    secret: str
    master_addr: str
    master_port: int
    job_id: str


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Seat:
    """A rank's place: on which host, and its numbers there. cross: among the hosts that have this local rank."""

    rank: int
    size: int
    host: str
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def seats(hosts: tuple[Host, ...], size: int) -> list[Seat]:
    """Seat size ranks: each host is filled before the next."""
    found: list[Seat] = []
    places = used(hosts, size)
    for number, host in enumerate(places):
        for local in range(host.slots):
            mates = [i for i, other in enumerate(places) if other.slots > local]
            found.append(Seat(len(found), size, host.name, local, host.slots, mates.index(number), len(mates)))
    return found


def default_threads(base: Mapping[str, str], extra: Mapping[str, str], local_size: int) -> int | None:
    """The OMP_NUM_THREADS that ranks get, or None if the user has set it."""
    if "OMP_NUM_THREADS" in base or "OMP_NUM_THREADS" in extra:
        return None
    return max(1, cores() // local_size)


def rank_variables(seat: Seat, meeting: Meeting) -> dict[str, str]:
    """What says to a rank who it is: for LWCC, for torch.distributed, and for scripts that read Horovod's names."""
    numbers = {
        "RANK": seat.rank,
        "SIZE": seat.size,
        "LOCAL_RANK": seat.local_rank,
        "LOCAL_SIZE": seat.local_size,
        "CROSS_RANK": seat.cross_rank,
        "CROSS_SIZE": seat.cross_size,
    }
    return {
        **{f"LWCC_{name}": str(n) for name, n in numbers.items() if not name.startswith("CROSS")},
        "LWCC_RENDEZVOUS": meeting.rendezvous,
        SECRET_NAME: meeting.secret,
        "LWCC_GENERATION": "0",
        "LWCC_JOB_ID": meeting.job_id,
        "RANK": str(seat.rank),
        "WORLD_SIZE": str(seat.size),
        "LOCAL_RANK": str(seat.local_rank),
        "LOCAL_WORLD_SIZE": str(seat.local_size),
        "MASTER_ADDR": meeting.master_addr,
        "MASTER_PORT": str(meeting.master_port),
        **{f"HOROVOD_{name}": str(n) for name, n in numbers.items()},
        "HOROVOD_HOSTNAME": seat.host,
    }


def rank_base(base: Mapping[str, str]) -> dict[str, str]:
    """What ranks keep of a host's environment."""
    env = {name: value for name, value in base.items() if name not in _STALE}
    env.setdefault("PYTHONUNBUFFERED", "1")  # into a pipe Python writes late, and a killed rank never
    return env


def rank_environment(base: Mapping[str, str], extra: Mapping[str, str], seat: Seat, meeting: Meeting) -> dict[str, str]:
    """The whole environment of a rank: base, then our defaults, then extra (flags and -x), then who it is."""
    env = rank_base(base)
    threads = default_threads(base, extra, seat.local_size)
    if threads is not None:
        env["OMP_NUM_THREADS"] = str(threads)
    env.update(extra)
    env.update(rank_variables(seat, meeting))
    return env


def travelling(base: Mapping[str, str]) -> dict[str, str]:
    """The part of base that goes to other hosts: what is about the job, not about this machine."""
    return {k: v for k, v in base.items() if _TRAVELS.match(k) and k not in _STALE and k != SECRET_NAME}


def without_secret(env: Mapping[str, str]) -> dict[str, str]:
    """env as it may be shown and stored."""
    return {name: "(hidden)" if name == SECRET_NAME else value for name, value in env.items()}
