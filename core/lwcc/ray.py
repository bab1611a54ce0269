"""Ranks in Ray's trainers: ``DataParallelTrainer(train, backend_config=lwcc.ray.LwccConfig(), scaling_config=...)``.

Ray starts the workers; each becomes a rank, and `train` calls `lwcc.init`. Needs the extra "ray" of this package.
"""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from typing import Any

from ray.train.backend import Backend, BackendConfig


def _address() -> tuple[str, int]:
    """Where this worker can serve the rendezvous."""
    import ray

    with socket.socket() as sock:
        sock.bind(("", 0))
        return ray.util.get_node_ip_address(), sock.getsockname()[1]


def _tell(variables: dict[str, str]) -> None:
    """On the worker; os.environ itself would travel as a copy."""
    os.environ.update(variables)


class _LwccBackend(Backend):  # type: ignore[misc]
    """Tells each worker its rank, and all of them where they meet."""

    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        """Set the variables that `lwcc.init` reads, on every worker."""
        host, port = worker_group.execute_single(0, _address)
        size = len(worker_group)
        common = {"LWCC_SIZE": str(size), "MASTER_ADDR": host, "MASTER_PORT": str(port)}
        common["LWCC_SECRET"] = secrets.token_hex(32)
        for rank in range(size):
            worker_group.execute_single(rank, _tell, {**common, "LWCC_RANK": str(rank)})


@dataclass
class LwccConfig(BackendConfig):  # type: ignore[misc]
    """Makes the workers of a trainer the ranks of a job."""

    @property
    def backend_cls(self) -> type[_LwccBackend]:
        """What Ray calls when the workers are there."""
        return _LwccBackend
