"""What the casebooks of both frameworks share: running the cases of a file on every rank, and asserting a failure."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping
from typing import Any, Callable


def run_cases(cases: Mapping[str, Any], hvd: Any, seed_framework: Callable[[int], object]) -> None:
    """Call the cases in order of their lines, or those named on the command line, and say so on rank 0."""
    hvd.init()
    seed = int(os.environ.get("SEED", "20"))
    if hvd.rank() == 0:
        print(f"SEED={seed}", flush=True)
    found = [f for name, f in cases.items() if name.startswith("case_") and inspect.isfunction(f)]
    for case in found:
        if len(sys.argv) > 1 and case.__name__ not in sys.argv[1:]:
            continue
        seed_framework(seed)
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
