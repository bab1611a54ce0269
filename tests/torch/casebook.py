"""Runs the cases of a file on every rank of a job: each function named case_* takes (rank, size)."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping
from typing import Any

import torch

import lwcc_torch as hvd


def run(cases: Mapping[str, Any]) -> None:
    """Call the cases in order of their lines, or those named on the command line, and say so on rank 0."""
    torch.set_num_threads(1)
    hvd.init()
    seed = int(os.environ.get("SEED", "20"))
    if hvd.rank() == 0:
        print(f"SEED={seed}", flush=True)
    found = [f for name, f in cases.items() if name.startswith("case_") and inspect.isfunction(f)]
    for case in found:
        if len(sys.argv) > 1 and case.__name__ not in sys.argv[1:]:
            continue
        torch.manual_seed(seed)
        case(hvd.rank(), hvd.size())
        hvd.barrier()
        if hvd.rank() == 0:
            print("held:", case.__name__, flush=True)
    hvd.shutdown()


def raises(kind: type[BaseException], words: str, action: Any) -> BaseException:
    """Assert that the action raises `kind` with a text that has all the words; return it."""
    try:
        action()
    except kind as error:
        for word in words.split():
            assert word in str(error), f"{word!r} is not in: {error}"
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def same_everywhere(tensors: Any) -> None:
    """Assert that the tensors have the same bits on all ranks."""
    for i, tensor in enumerate(tensors):
        bits = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        everybody = hvd.allgather(bits.unsqueeze(0), name=f"same.{i}")
        assert bool((everybody == bits).all()), f"tensor {i} differs between the ranks"
