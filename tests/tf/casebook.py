"""Runs the cases of a file on every rank of a job: each function named case_* takes (rank, size)."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

import lwcc_tf as hvd


def run(cases: Mapping[str, Any]) -> None:
    """Call the cases in order of their lines, or those named on the command line, and say so on rank 0."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    hvd.init()
    seed = int(os.environ.get("SEED", "20"))
    if hvd.rank() == 0:
        print(f"SEED={seed}", flush=True)
    found = [f for name, f in cases.items() if name.startswith("case_") and inspect.isfunction(f)]
    for case in found:
        if len(sys.argv) > 1 and case.__name__ not in sys.argv[1:]:
            continue
        tf.random.set_seed(seed)
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
