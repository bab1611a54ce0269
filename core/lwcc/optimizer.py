"""One name for both adapters' optimizer: the class of the argument decides, and only its adapter is loaded."""

from __future__ import annotations

import importlib
from typing import Any

_ADAPTERS = {"torch": "lwcc_torch", "keras": "lwcc_tf.keras", "tf_keras": "lwcc_tf.keras", "tensorflow": "lwcc_tf"}


def DistributedOptimizer(optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
    """Wrap a PyTorch, Keras or TensorFlow optimizer so that its step averages the gradients over the ranks.

    Args:
        optimizer: the framework's optimizer.
        *arguments: given on to the adapter's `DistributedOptimizer`.
        **keywords: likewise (`named_parameters=...` for PyTorch).

    Raises:
        TypeError: no framework with an adapter knows this class.
    """
    for cls in type(optimizer).__mro__:
        adapter = _ADAPTERS.get(cls.__module__.partition(".")[0])
        if adapter is not None:
            return importlib.import_module(adapter).DistributedOptimizer(optimizer, *arguments, **keywords)
    raise TypeError(
        f"lwcc: {type(optimizer).__module__}.{type(optimizer).__qualname__} is no optimizer of PyTorch, Keras or "
        "TensorFlow"
    )
