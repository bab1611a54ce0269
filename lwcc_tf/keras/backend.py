"""Which framework Keras stands on."""

from __future__ import annotations

import importlib
from typing import Any


def name() -> str:
    """Return the name of Keras's backend."""
    import keras

    return str(keras.backend.backend())


def load() -> Any:
    """Return our module for Keras's backend.

    Raises:
        NotImplementedError: there is none.
    """
    current = name()
    if current not in ("tensorflow", "torch"):
        raise NotImplementedError(f"lwcc: Keras runs on the backend {current}; lwcc_tf.keras needs tensorflow or torch")
    return importlib.import_module(f"lwcc_tf.keras.{current}_backend")


def compression() -> Any:
    """Return the class `Compression` for Keras's backend."""
    return importlib.import_module("lwcc_torch" if name() == "torch" else "lwcc_tf").Compression
