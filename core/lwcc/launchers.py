"""Who started this process, as which rank of how many? Reads the variables of launchers and schedulers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Optional

from lwcc.launcher.hosts import HostError, parse_hosts


class Place(NamedTuple):
    """This process's place in the job, and how to meet the others.

    `scheme`: alone, lwcc (a launcher's store), torchelastic (torchrun's store), master (rank 0 serves at host and
    port), slurm (as master, once the node's address is known), file and pmi (rank 0 tells where it serves, `host` being
    the file's key), store or mpi. `listen`: where rank 0 serves if that is not `host`.
    """

    rank: int
    size: int
    scheme: str
    host: str = ""
    port: int = 0
    secret: bytes = b""
    generation: int = 0
    source: str = "nothing set"
    listen: str = ""


class _Launcher(NamedTuple):
    """How a launcher numbers its processes. `proof`: variables that only its processes have, all of them."""

    name: str
    proof: tuple[str, ...]
    rank: str
    size: str


_PLAIN = "plain variables"
_SRUN = "srun"
# Innermost first: who is found first has started this very process.
_LAUNCHERS = (
    _Launcher("torchrun", ("TORCHELASTIC_RUN_ID", "RANK"), "RANK", "WORLD_SIZE"),
    _Launcher(_PLAIN, ("RANK", "WORLD_SIZE"), "RANK", "WORLD_SIZE"),
    _Launcher("Open MPI", ("OMPI_COMM_WORLD_RANK",), "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    _Launcher("Cray PALS", ("PALS_RANKID", "PMI_SIZE"), "PALS_RANKID", "PMI_SIZE"),
    _Launcher("MPICH or Intel MPI", ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"), "PMI_RANK", "PMI_SIZE"),
    _Launcher("MVAPICH", ("MV2_COMM_WORLD_RANK",), "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    _Launcher("Flux", ("FLUX_TASK_RANK",), "FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    _Launcher("LSF jsrun", ("JSM_NAMESPACE_RANK",), "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    _Launcher(_SRUN, ("SLURM_STEP_ID", "SLURM_PROCID"), "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    _Launcher("a PMI launcher", ("PMI_RANK", "PMI_SIZE"), "PMI_RANK", "PMI_SIZE"),
    _Launcher("Kubernetes", ("JOB_COMPLETION_INDEX", "LWCC_SIZE"), "JOB_COMPLETION_INDEX", "LWCC_SIZE"),
)
_NO_STEP = 0xFFFFFFF0  # Slurm's ids from here on are batch scripts and shells, which it has started as one process


def find_place(env: Mapping[str, str]) -> Place:
    """Return this process's place, from the environment of whoever started it; size 1 if nobody did.

    Raises:
        ValueError: a variable is missing or senseless, or two launchers contradict each other; the text says what to
            set.
    """
    if "LWCC_RANK" in env:
        return _meet(env, _Launcher("lwccrun", (), "LWCC_RANK", "LWCC_SIZE"))
    found = [row for row in _LAUNCHERS if _has_started(env, row)]
    if not found:
        return Place(0, 1, "alone")
    _check_agreement(env, found)
    return _meet(env, found[0])


def _has_started(env: Mapping[str, str], row: _Launcher) -> bool:
    if not all(env.get(name) for name in row.proof):
        return False
    return row.name != _SRUN or not env["SLURM_STEP_ID"].isdigit() or int(env["SLURM_STEP_ID"]) < _NO_STEP


def _check_agreement(env: Mapping[str, str], found: list[_Launcher]) -> None:
    """A launcher inside another is well; jobs of one in the processes of a larger one, or stale variables, are not."""
    first, told = found[0], _numbers(env, found[0])
    for other in found[1:]:
        if other.rank == first.rank or other.size not in env:
            continue
        others = _numbers(env, other)
        stale = first.name == _PLAIN and told != others
        if stale or (told[1] == 1 < others[1]):
            raise ValueError(
                f"lwcc: {first.rank}={told[0]} and {first.size}={told[1]} ({first.name}) contradict {other.rank}="
                f"{others[0]} and {other.size}={others[1]} ({other.name}): which job is this process part of? Unset "
                "the variables that are left over from elsewhere, or set LWCC_RANK and LWCC_SIZE, which go before all "
                "others (LWCC_RANK=0 and LWCC_SIZE=1 if each process shall be a job of its own)"
            )


def _numbers(env: Mapping[str, str], row: _Launcher) -> tuple[int, int]:
    rank, size = number(env, row.rank), number(env, row.size)
    if size < 1 or not 0 <= rank < size:
        raise ValueError(f"lwcc: {row.rank}={rank} and {row.size}={size}: the rank must be in 0..size-1")
    return rank, size


def _meet(env: Mapping[str, str], row: _Launcher) -> Place:
    rank, size = _numbers(env, row)
    generation = number(env, "LWCC_GENERATION") if env.get("LWCC_GENERATION") else 0
    place = Place(rank, size, "alone", generation=generation, source=row.name)
    if size == 1:
        return place
    secret = parse_secret(env["LWCC_SECRET"]) if env.get("LWCC_SECRET") else b""
    if env.get("LWCC_RENDEZVOUS"):
        host, port = parse_address(env["LWCC_RENDEZVOUS"], "LWCC_RENDEZVOUS")
        return place._replace(scheme="lwcc", host=host, port=port, secret=secret or parse_secret(""))
    if env.get("MASTER_ADDR") and env.get("MASTER_PORT"):
        of_agent = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and row.rank == "RANK"
        return place._replace(
            scheme="torchelastic" if of_agent else "master",
            host=env["MASTER_ADDR"],
            port=number(env, "MASTER_PORT"),
            secret=secret,
            generation=generation or int(env.get("TORCHELASTIC_RESTART_COUNT", "0") or 0),
        )
    if env.get("LWCC_ENGINE") == "mpi":
        return place._replace(scheme="mpi")  # they meet through the MPI itself
    without = _without_address(env, row, place._replace(secret=secret))
    if without is not None:
        return without
    raise ValueError(
        f"lwcc: {row.name} started this process as rank {rank} of {size}, but nothing says where the ranks meet. "
        "Set MASTER_ADDR and MASTER_PORT (a host all ranks reach and a free port on it, where rank 0 runs), "
        "or start the script with lwccrun"
    )


def _without_address(env: Mapping[str, str], row: _Launcher, place: Place) -> Optional[Place]:
    """Find a meeting point in what the launcher itself offers; None if it offers none."""
    if row.name == _SRUN and env.get("SLURM_STEP_NODELIST"):
        return place._replace(scheme="slurm", host=_first_node(env), port=_slurm_port(env), listen="0.0.0.0")
    job = env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_ess_base_jobid")
    if row.name == "Open MPI" and job:
        one_host = env.get("OMPI_COMM_WORLD_LOCAL_SIZE") == str(place.size)
        return place._replace(scheme="file", host=job, listen="127.0.0.1" if one_host else "0.0.0.0")
    if env.get("PMI_FD") and row.size == "PMI_SIZE":
        one_host = env.get("MPI_LOCALNRANKS") == str(place.size)
        return place._replace(scheme="pmi", port=number(env, "PMI_FD"), listen="127.0.0.1" if one_host else "0.0.0.0")
    return None


def _first_node(env: Mapping[str, str]) -> str:
    """Slurm's lists have the form of our own: n[1-4],m7. Task 0 runs on the first node."""
    text = env["SLURM_STEP_NODELIST"]
    try:
        return parse_hosts(text, "SLURM_STEP_NODELIST")[0].name
    except HostError as error:
        raise ValueError(f"lwcc: {error}") from None


def _slurm_port(env: Mapping[str, str]) -> int:
    """A port that differs between steps, below those that the kernel hands out by itself."""
    job = number(env, "SLURM_JOB_ID") if env.get("SLURM_JOB_ID") else 0
    return 10000 + (job * 131 + number(env, "SLURM_STEP_ID") * 17) % 20000


def number(env: Mapping[str, str], name: str) -> int:
    """Return a variable as a whole number; ValueError naming it."""
    text = env.get(name)
    if text is None:
        raise ValueError(f"lwcc: the variable {name} is not set, although this process seems to be part of a job")
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"lwcc: {name}={text!r} is not a whole number") from None


def parse_address(text: str, what: str) -> tuple[str, int]:
    """Split "host:port" or "[v6]:port"."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"lwcc: {what}={text!r} is not host:port")
    return host.strip("[]"), int(port)


def parse_secret(text: str) -> bytes:
    """Read the job's secret: 32 bytes, hexadecimal."""
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        raise ValueError("lwcc: LWCC_SECRET is not hexadecimal") from None
    if len(secret) != 32:
        raise ValueError(f"lwcc: LWCC_SECRET has {len(secret)} bytes, expected 32 (64 hexadecimal digits)")
    return secret
