"""The lwccrun command from its arguments to its exit code."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace

from lwcc.launcher import info, slurm
from lwcc.launcher.args import LaunchSpec, parse
from lwcc.launcher.env import Meeting, default_threads
from lwcc.launcher.fleet import Fleet, peer_timeout
from lwcc.launcher.folder import own_folder
from lwcc.launcher.hosts import used
from lwcc.launcher.net import HUB, Network
from lwcc.launcher.nics import want_descriptors
from lwcc.launcher.runlog import RunLog
from lwcc.launcher.server import StoreServer
from lwcc.launcher.spawn import CannotRun, build_command
from lwcc.launcher.store import SECRET_NBYTES
from lwcc.launcher.supervise import Meet, Supervisor

_HOST = "127.0.0.1"
_INTERNAL_ERROR = 70  # EX_SOFTWARE


def run_command(argv: Sequence[str] | None) -> int:
    """Parse, then do. Never shows a traceback of the launcher, unless --verbose asks for it."""
    spec = parse(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(spec)
    except CannotRun as error:
        print(f"lwccrun: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # the user gets one line; --verbose shows the rest
        if spec.verbose:
            raise
        print(f"lwccrun: {type(error).__name__}: {error} (--verbose shows where)", file=sys.stderr)
        return 1 if isinstance(error, OSError) else _INTERNAL_ERROR


def _dispatch(spec: LaunchSpec) -> int:
    if spec.check_build:
        print(info.check_build(), end="")
        return 0
    command = build_command(spec.command, spec.module)
    if spec.dry_run:
        meeting = Meeting(f"{_HOST if not spec.agents else '(reached by all)'}:PORT", "", _HOST, 0, "dry-run")
        print(info.dry_run(spec, command, meeting, os.environ), end="")
        return 0
    network = Network(spec.net, spec.np) if spec.net is not None else None
    if network is None:
        return _dispatch_run(spec, command, None)
    print(f"lwccrun: {network.describe()}", file=sys.stderr)
    try:
        code = _dispatch_run(spec, command, network)
        print(f"lwccrun: {network.traffic()}", file=sys.stderr)
        return code
    finally:
        network.close()


def _dispatch_run(spec: LaunchSpec, command: Sequence[str], network: Network | None) -> int:
    if spec.baseline:
        from lwcc.launcher.baseline import run_baseline  # only a comparison needs it

        return run_baseline(spec, command, network)
    return run_job(spec, command, network)


def run_job(spec: LaunchSpec, command: Sequence[str], network: Network | None = None) -> int:
    """Run the ranks on the engine that spec names; return the exit code. Raises CannotRun."""
    secret = os.urandom(SECRET_NBYTES)
    host = "*" if spec.agents else HUB if network is not None else _HOST
    want_descriptors(spec.np)
    folder = own_folder() if spec.engine == "mpi" else None
    store = StoreServer(host, 0, secret, on_stranger=lambda text: print(f"lwccrun: {text}", file=sys.stderr))
    fleet = None
    try:
        if spec.agents:
            if spec.starter == "slurm":
                print(f"lwccrun: {slurm.describe(spec.hosts, os.environ)}", file=sys.stderr)
            fleet = Fleet(spec, spec.agents, peer_timeout(spec))
            fleet.preflight(spec, store, secret)
        first = network.address(0) if network is not None else _HOST
        meeting = _make_meeting(spec, store, secret.hex(), (first, fleet))
        spec = replace(_with_cost(_with_threads(spec)), crew=folder.name if folder is not None else "")
        if network is not None:
            prefixes = tuple(network.prefix(rank) for rank in range(spec.np))
            places = tuple(f"node{network.node_of(rank)}" for rank in range(spec.np))
            more = {**network.variables(), **spec.extra_env}
            spec = replace(spec, prefixes=prefixes, places=places, extra_env=more)
        spec, command = _on_engine(spec, command, network)
        log = RunLog(spec, meeting.job_id)
        return Supervisor(spec, command, meeting, Meet(store, fleet)).run(log, dict(os.environ))
    finally:
        if fleet is not None:
            fleet.close()
        store.close()
        if folder is not None:
            folder.cleanup()


def _make_meeting(spec: LaunchSpec, store: StoreServer, secret: str, where: tuple[str, Fleet | None]) -> Meeting:
    """Where the ranks meet: LWCC's in the store, torch.distributed's on rank 0's host."""
    (first, fleet), port, host = where, 0, store.host
    if fleet is not None:
        host = first = fleet.address
        if spec.hosts[0].name in fleet.agents:
            first, port = fleet.address_of(spec.hosts[0].name)
    shown = f"[{host}]" if ":" in host else host
    return Meeting(f"{shown}:{store.port}", secret, first, port or _free_port(), os.urandom(6).hex())


def _with_threads(spec: LaunchSpec) -> LaunchSpec:
    threads = default_threads(os.environ, spec.extra_env, used(spec.hosts, spec.np)[0].slots)
    if threads is None:
        return spec
    print(f"lwccrun: OMP_NUM_THREADS={threads} for each rank (set it yourself to change that)", file=sys.stderr)
    return replace(spec, extra_env={"OMP_NUM_THREADS": str(threads), **spec.extra_env})


def _with_cost(spec: LaunchSpec) -> LaunchSpec:
    """Add what `lwcc bench p2p` and `lwcc tune` have stored of the wire: all ranks must choose alike."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    try:
        with open(os.path.join(home, "lwcc", "cost.json"), encoding="utf-8") as file:
            kept = json.load(file)
        wire = spec.net.wire() if spec.net is not None else ""  # "": the machines' own
        found = {"LWCC_TUNED": str(kept.get("tuned", {}).get(f"{spec.np} {wire}".strip(), ""))}
        if "alpha_s" in kept and kept.get("wire", "") == wire:
            keys = ("alpha_s", "beta_s_per_byte", "gamma_s_per_byte")
            found["LWCC_COST"] = ",".join(f"{float(kept[key]):.6g}" for key in keys)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return spec  # never measured, or unreadable: the library measures at start
    new = {k: v for k, v in found.items() if v and k not in os.environ and k not in spec.extra_env}
    return replace(spec, extra_env={**new, **spec.extra_env})


def _on_engine(spec: LaunchSpec, command: Sequence[str], network: Network | None) -> tuple[LaunchSpec, Sequence[str]]:
    """Make the job one of its engine. An MPI starts its ranks itself, so that we start one process: its launcher."""
    if spec.engine == "own":
        return spec, command
    settings = spec.settings
    if spec.engine == "mpi":
        from lwcc.launcher import mpi

        found = mpi.find_mpi()
        settings = settings or mpi.named(found, spec.np, spec.mpi_settings or "mpi")
        if network is not None:
            settings = replace(
                settings, arguments=(*settings.arguments, *network.mpi_arguments(found.kind, settings.arguments))
            )
        command = mpi.command(found, settings, spec.np, spec.crew, command)
        spec = replace(spec, prefixes=())
    ours = {"LWCC_ALGORITHM": "", "LWCC_PLUGIN": ""}  # chosen for LWCC's own engine
    variables = {"LWCC_ENGINE": spec.engine, **ours, **(settings.variables if settings else {})}
    return replace(spec, extra_env={**spec.extra_env, **variables}), command


def _free_port() -> int:
    """A port that was free a moment ago, for torch.distributed on rank 0."""
    with socket.socket() as sock:
        sock.bind((_HOST, 0))
        port: int = sock.getsockname()[1]
        return port
