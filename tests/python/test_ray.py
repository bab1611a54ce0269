"""Workers of Ray's trainer as ranks, where Ray is installed and when asked for: it takes half a minute to start."""

from __future__ import annotations

import sys
from typing import Any

import pytest

SCRIPT = """
import ray
from ray.train import ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from lwcc.ray import LwccConfig

def train():
    import numpy as np, lwcc
    lwcc.init()
    out = lwcc.allreduce(np.full(2, lwcc.rank() + 1.0), op=lwcc.Sum, name="x")
    assert (lwcc.size(), out.tolist()) == (3, [6, 6]), out
    lwcc.shutdown()

ray.init(num_cpus=4, include_dashboard=False)
DataParallelTrainer(train, backend_config=LwccConfig(), scaling_config=ScalingConfig(num_workers=3)).fit()
print("trained")
"""


@pytest.mark.slow
def test_workers_of_rays_trainer_are_ranks(finish: Any) -> None:
    pytest.importorskip("ray.train", reason="the extra ray is not installed")

    done = finish([sys.executable, "-c", SCRIPT], RAY_AUTH_MODE="disabled", RAY_TRAIN_V2_ENABLED="1")
    assert "trained" in done.out
