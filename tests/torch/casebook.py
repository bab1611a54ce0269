"""Runs the cases of a file on every rank of a job: each function named case_* takes (rank, size)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import lwcc_torch as hvd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from casework import raises as raises
from casework import run_cases


def run(cases: Mapping[str, Any]) -> None:
    """Call the cases in order of their lines, or those named on the command line, and say so on rank 0."""
    torch.set_num_threads(1)
    run_cases(cases, hvd, torch.manual_seed)


def same_everywhere(tensors: Any) -> None:
    """Assert that the tensors have the same bits on all ranks."""
    for i, tensor in enumerate(tensors):
        bits = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        everybody = hvd.allgather(bits.unsqueeze(0), name=f"same.{i}")
        assert bool((everybody == bits).all()), f"tensor {i} differs between the ranks"
