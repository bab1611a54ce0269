"""What Slurm has allocated to this job, from its variables."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lwcc.launcher.hosts import Host, HostError, parse_hosts
from lwcc.launcher.spawn import CannotRun

_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def allocation(env: Mapping[str, str]) -> tuple[Host, ...]:
    """The job's nodes with their tasks; () outside a job. Raises CannotRun where each task would be a launcher."""
    nodes, counts = env.get("SLURM_JOB_NODELIST"), env.get("SLURM_TASKS_PER_NODE")
    if not env.get("SLURM_JOB_ID") or not nodes:
        return ()
    tasks = env.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks != "1" and "SLURM_STEP_ID" in env:
        raise CannotRun(
            f"srun has started {tasks} of lwccrun; start one in the batch script or by salloc, or the ranks themselves "
            f"by srun -n {tasks} python train.py",
            2,
        )
    try:
        names = [host.name for host in parse_hosts(nodes, "SLURM_JOB_NODELIST")]
    except HostError as error:
        raise CannotRun(str(error), 2) from None
    slots = tasks_per_node(counts or "1", len(names))
    return tuple(Host(name, count) for name, count in zip(names, slots))


def tasks_per_node(text: str, nodes: int) -> list[int]:
    """Expand Slurm's "2(x3),1" to [2, 2, 2, 1]; what it does not say of a node is one."""
    found: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part.strip())
        if match:
            found += [int(match[1])] * min(int(match[2] or 1), nodes)
    return [max(n, 1) for n in (found + [1] * nodes)[:nodes]]


def describe(hosts: tuple[Host, ...], env: Mapping[str, str]) -> str:
    """The allocation in a line: "Slurm job 12: 2 nodes x 4"."""
    counts = {host.slots for host in hosts}
    each = f"{counts.pop()}" if len(counts) == 1 else "/".join(str(host.slots) for host in hosts[:8])
    return f"Slurm job {env['SLURM_JOB_ID']}: {len(hosts)} node{'s'[: len(hosts) != 1]} x {each}"
