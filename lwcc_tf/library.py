"""The ops of the plugin: found beside this file, loaded once, on the first collective."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import tensorflow as tf

from lwcc import context  # loads the native module, which the plugin looks for
from lwcc import ops as core
from lwcc_tf import chaining

# what LwccNumber can be asked for, as ops.c counts them
RANK, SIZE, LOCAL_RANK, LOCAL_SIZE, CROSS_RANK, CROSS_SIZE, INCLUDED = range(7)
MOST_UNDER_WAY, FORWARDED, ALLOCATED, ASYNCHRONOUS = range(7, 11)


@cache
def load() -> Any:
    """Return the module with TensorFlow's wrappers of the ops.

    Raises:
        ImportError: the plugin is missing, or this TensorFlow cannot take it.
    """
    assert context is not None
    (path, *_) = [*Path(__file__).parent.glob("_tfops*.so"), None]
    if path is None:
        raise ImportError("lwcc_tf: the library of ops is missing; install lwcc with its native parts (pip install .)")
    ops = tf.load_op_library(str(path))
    if not hasattr(ops, "lwcc_allreduce"):
        raise ImportError(
            f"lwcc_tf: TensorFlow {tf.__version__} did not take the ops (it said why on stderr); versions from 2.16 do"
        )
    chaining.install()
    return ops


@cache
def wrapper(collective: int) -> Any:
    """Return TensorFlow's wrapper of a collective's op."""
    return getattr(load(), f"lwcc_{core.COLLECTIVE_NAMES[collective]}")


@cache
def asynchronous() -> bool:
    """Tell whether kernels return before they are done; else they hold a thread, and have to run in one order."""
    with tf.init_scope():
        if tf.executing_eagerly():
            return bool(load().lwcc_number(tensor_name="number", op=ASYNCHRONOUS))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:  # in a graph of TensorFlow 1
        return bool(session.run(load().lwcc_number(tensor_name="number", op=ASYNCHRONOUS)))
