"""Runs the cases of a file on every rank of a job: each function named case_* takes (rank, size)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

import lwcc_tf as hvd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from casework import raises as raises
from casework import run_cases


def run(cases: Mapping[str, Any]) -> None:
    """Call the cases in order of their lines, or those named on the command line, and say so on rank 0."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    run_cases(cases, hvd, tf.random.set_seed)


def equal(a: Any, b: Any) -> bool:
    """Tell whether two tensors have the same type, shape and elements."""
    a, b = tf.convert_to_tensor(a), tf.convert_to_tensor(b)
    return a.dtype == b.dtype and a.shape == b.shape and bool((a.numpy() == b.numpy()).all())


def same_everywhere(tensors: Any) -> None:
    """Assert that the tensors have the same bits on all ranks."""
    mine = [tf.convert_to_tensor(tensor).numpy().tobytes() for tensor in tensors]
    for rank, theirs in enumerate(hvd.allgather_object(mine, name="same")):
        differing = [i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b]
        assert len(mine) == len(theirs) and not differing, f"tensors {differing} differ from rank {rank}'s"
