"""What lwccrun prints about itself and its plans: --dry-run and --check-build. Imports nothing that it looks for."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

from lwcc.launcher.args import LaunchSpec
from lwcc.launcher.env import Meeting, cores, rank_environment, rank_variables, seats, without_secret
from lwcc.launcher.hosts import used


def version() -> str:
    """The installed version of LWCC."""
    from importlib import metadata  # slow to import, and seldom needed

    try:
        return metadata.version("lwcc")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def machine() -> str:
    """This machine in a line: processor, cores, kernel."""
    name = "unknown processor"
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith(("model name", "CPU part")):
                name = line.split(":", 1)[1].strip()
                break
    return f"{name}, {cores()} cores, Linux {os.uname().release}"


def check_build() -> str:
    """A list in Horovod's form of what this installation can do, from what files and packages are there."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    core = any(name.startswith("_native") and name.endswith(".so") for name in os.listdir(here))
    torch = _found("torch") and _found("lwcc_torch")
    tensorflow = _found("tensorflow") and _found("lwcc_tf")
    groups = (
        ("Available frameworks", (("PyTorch", torch), ("TensorFlow", tensorflow), ("NumPy", _found("numpy")))),
        ("Available controllers", (("LWCC rendezvous store", True), ("MPI", _found("mpi4py")), ("Gloo", False))),
        (
            "Available tensor operations",
            (("LWCC core: shared memory, TCP", core), ("NCCL", False), ("MPI", _found("mpi4py")), ("Gloo", torch)),
        ),
    )
    lines = [f"LWCC {version()}:"]
    for title, rows in groups:
        lines += ["", f"{title}:"] + [f"    [{'X' if there else ' '}] {name}" for name, there in rows]
    return "\n".join(lines) + "\n"


def _found(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


def dry_run(spec: LaunchSpec, command: Sequence[str], meeting: Meeting, base: Mapping[str, str]) -> str:
    """Placement, command and what is added to each rank's environment; the secret is not shown."""
    all_seats = seats(spec.hosts, spec.np)
    hosts = ", ".join(f"{host.slots} on {host.name}" for host in used(spec.hosts, spec.np))
    lines = [
        f"placement: {spec.np} rank(s), {hosts}" + (f" by {spec.starter}" if spec.agents else f" ({cores()} cores)"),
        f"command:   {shlex.join(command)}",
        f"rendezvous {meeting.rendezvous} (a free port is chosen at the start)",
    ]
    env = rank_environment(base, spec.extra_env, all_seats[0], meeting)
    own = rank_variables(all_seats[0], meeting)
    common = {name: env[name] for name in env if name not in own and env[name] != base.get(name)}
    common.update(spec.extra_env)
    lines.append("all ranks: " + _assignments(common))
    for seat in all_seats:
        lines.append(f"rank {seat.rank}:    " + _assignments(without_secret(rank_variables(seat, meeting))))
    return "\n".join(lines) + "\n"


def _assignments(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items()) or "(nothing more)"
