"""Methods that torch.compile calls as they are: it breaks its graph before them, as before gloo's, which are C++."""

from __future__ import annotations

import importlib
import types
from typing import Any, TypeVar

_Class = TypeVar("_Class", bound=type)


def opaque(kind: _Class) -> _Class:
    """Mark the methods of a class: not to be traced, nor what they call.

    This is what `torch.compiler.disable` says, without a wrapper in each call, and without the second that it takes to
    load the compiler.
    """
    engine: Any = importlib.import_module("torch._C._dynamo.eval_frame")
    if not hasattr(engine, "set_code_exec_strategy"):  # before torch 2.7
        return kind
    skip = engine._FrameAction.SKIP
    for method in vars(kind).values():
        if isinstance(method, types.FunctionType):
            method._torchdynamo_disable = True  # type: ignore[attr-defined]
            method._torchdynamo_disable_msg = "lwcc: collectives run as they are"  # type: ignore[attr-defined]
            engine.set_code_exec_strategy(method.__code__, engine._FrameExecStrategy(skip, skip))
    return kind
