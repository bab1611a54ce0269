"""The run directory: every rank's output in files, and run.json, which says what was run and how it ended."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from lwcc.launcher import info
from lwcc.launcher.args import LaunchSpec
from lwcc.launcher.env import without_secret
from lwcc.launcher.hosts import used
from lwcc.launcher.logdir import make, write_json
from lwcc.launcher.spawn import Rank

_SHOWN_PREFIXES = ("LWCC_", "OMP_", "MKL_", "CUDA_VISIBLE", "MASTER_", "PYTHON")


class RunLog:
    """A run directory; with directory None every method does nothing.

    Raises CannotRun if there can be none, OSError if a rank's files cannot be opened. That run.json cannot be written
    is only said: the job counts.
    """

    def __init__(self, spec: LaunchSpec, job_id: str) -> None:
        self._directory = spec.log_dir
        self._spec = spec
        self._record: dict[str, Any] = {
            "job_id": job_id,
            "lwcc_version": None,
            "python": sys.version.split()[0],
            "executable": sys.executable,
            "np": spec.np,
            "command": list(spec.command),
            "module": spec.module,
            "cwd": os.getcwd(),
            "hosts": [{"name": host.name, "ranks": host.slots} for host in used(spec.hosts, spec.np)],
            "started": _now(),
            "ended": None,
            "exit_code": None,
            "ranks": [],
        }
        if self._directory is not None:
            self._record["lwcc_version"] = info.version()
            make(self._directory, "--output-filename" if spec.horovod_log_layout else "--log-dir")

    def open(self, rank: int) -> Sequence[BinaryIO | None]:
        """The files for a rank's stdout and stderr."""
        if self._directory is None:
            return (None, None)
        if self._spec.horovod_log_layout:
            width = len(str(self._spec.np - 1))
            folder, names = f"rank.{rank:0{width}d}", ("stdout", "stderr")
        else:
            folder, names = f"rank-{rank}", ("stdout.log", "stderr.log")
        path = os.path.join(self._directory, folder)
        os.makedirs(path, exist_ok=True)
        return tuple(open(os.path.join(path, name), "wb") for name in names)

    def started(self, env_of_rank_0: Mapping[str, str]) -> None:
        """Write run.json as far as it is known."""
        chosen = {**{k: v for k, v in env_of_rank_0.items() if k.startswith(_SHOWN_PREFIXES)}, **self._spec.extra_env}
        self._record["env_of_rank_0"] = without_secret(dict(sorted(chosen.items())))
        self._write()

    def ended(self, ranks: Sequence[Rank], code: int) -> None:
        """Write how each rank ended."""
        self._record["ended"] = _now()
        self._record["exit_code"] = code
        self._record["ranks"] = [
            {
                "rank": r.rank,
                "pid": r.pid,
                "host": r.host,
                "exit": r.how if r.status is not None else None,
                "status": r.status,
                "seconds": round(r.died - r.born, 3) if r.died is not None else None,
                "stopped_by_lwccrun": r.stopped_by_us,
            }
            for r in ranks
        ]
        self._write()

    def _write(self) -> None:
        if self._directory is None:
            return
        path = os.path.join(self._directory, "run.json")
        try:
            write_json(path, self._record)
        except OSError as error:
            with contextlib.suppress(OSError):  # stderr may be on the same full disk
                print(f"lwccrun: {path} cannot be written: {error.strerror or error}", file=sys.stderr, flush=True)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
