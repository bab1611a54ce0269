"""Loading models for distributed training, and collectives on plain values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

import numpy as np

import lwcc
from lwcc_tf.keras import backend
from lwcc_tf.keras.optimizer import DistributedOptimizer


def load_model(
    filepath: Any, custom_optimizers: Optional[Iterable[Any]] = None, custom_objects: Optional[dict[str, Any]] = None,
    compression: Any = None, legacy_opts: bool = False,
) -> Any:  # fmt: skip
    """Load a model with Keras's `models.load_model` and distribute its optimizer.

    Args:
        filepath: what Keras loads from.
        custom_optimizers: classes of optimizers that Keras does not know.
        custom_objects: as for Keras.
        compression: as for `DistributedOptimizer`.
        legacy_opts: accepted for compatibility.
    """
    known = {cls.__name__: cls for cls in custom_optimizers or ()}
    model = backend.keras_module().models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model


def allreduce(
    value: Any, name: Optional[str] = None, average: Optional[bool] = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, op: Optional[int] = None, compression: Any = None,
) -> Any:  # fmt: skip
    """Reduce a number, list or array over the ranks (default: average); return a numpy array. Eager only."""
    if average is not None and op is not None:
        raise ValueError("lwcc: give op= or the deprecated average=, not both")
    kind = op if op is not None else lwcc.Sum if average is False else lwcc.Average
    return lwcc.allreduce(
        np.asarray(value), op=kind, name=name, prescale_factor=prescale_factor, postscale_factor=postscale_factor
    )


def allgather(value: Any, name: Optional[str] = None) -> Any:
    """Concatenate the ranks' arrays along dimension 0; return a numpy array. Eager only."""
    return lwcc.allgather(np.asarray(value), name=name)


def broadcast(value: Any, root_rank: int, name: Optional[str] = None) -> Any:
    """Return the array of `root_rank` as a numpy array. Eager only."""
    return lwcc.broadcast(np.asarray(value), root_rank, name=name)


def reducescatter(value: Any, name: Optional[str] = None, op: int = lwcc.Average) -> Any:
    """Reduce over the ranks and return this rank's rows as a numpy array. Eager only."""
    return lwcc.reducescatter(np.asarray(value), op=op, name=name)
