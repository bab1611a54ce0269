"""Which Keras a program uses, and which framework that stands on."""

from __future__ import annotations

import importlib
import os
import sys
from functools import cache
from typing import Any


@cache
def keras_module() -> Any:
    """Return the program's Keras: tf_keras where TF_USE_LEGACY_KERAS asks for it or only it is imported, or keras."""
    wanted = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    alone = "tf_keras" in sys.modules and "keras" not in sys.modules
    return importlib.import_module("tf_keras" if wanted or alone else "keras")


def name() -> str:
    """Return the name of the framework."""
    keras = keras_module()
    return "tensorflow" if keras.__name__ == "tf_keras" else str(keras.backend.backend())


def load() -> Any:
    """Return our module for the framework.

    Raises:
        NotImplementedError: there is none.
    """
    current = name()
    if current not in ("tensorflow", "torch"):
        raise NotImplementedError(f"lwcc: Keras runs on the backend {current}; lwcc_tf.keras needs tensorflow or torch")
    return importlib.import_module(f"lwcc_tf.keras.{current}_backend")


def compression() -> Any:
    """Return the class `Compression` for the framework."""
    return importlib.import_module("lwcc_torch" if name() == "torch" else "lwcc_tf").Compression
