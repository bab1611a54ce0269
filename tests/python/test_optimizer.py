"""Which adapter `lwcc.DistributedOptimizer` takes."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

import lwcc


def adapter(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.DistributedOptimizer = lambda *args, **keywords: (name, args, keywords)  # type: ignore[attr-defined]
    return module


def optimizer_of(module: str) -> Any:
    base = type("Optimizer", (), {"__module__": module})
    return type("Mine", (base,), {"__module__": "my.script"})()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch.optim.sgd", "lwcc_torch"),
        ("keras.src.optimizers.sgd", "lwcc_tf.keras"),
        ("tensorflow.python.x", "lwcc_tf"),
    ],
)
def test_the_class_picks_the_adapter(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    monkeypatch.setitem(sys.modules, name.split(".")[0], adapter(name.split(".")[0]))
    monkeypatch.setitem(sys.modules, name, adapter(name))
    optimizer = optimizer_of(module)
    assert lwcc.DistributedOptimizer(optimizer, op=lwcc.Sum) == (name, (optimizer,), {"op": lwcc.Sum})


def test_other_classes_are_refused() -> None:
    with pytest.raises(TypeError, match="no optimizer of PyTorch, Keras or TensorFlow"):
        lwcc.DistributedOptimizer(object())
