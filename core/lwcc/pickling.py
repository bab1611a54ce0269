"""How Python objects are pickled for other processes: by cloudpickle, which carries functions of the main script."""

from __future__ import annotations

import io
import pickle
import types
from typing import Any

_MISSING = (
    "cannot reach another process by plain pickle, which knows neither lambdas nor what the main script defines; "
    "pip install cloudpickle, or move it to a module that the ranks import"
)


def pickled(obj: Any) -> bytes:
    """Return the pickle of an object, which may be, or hold, a lambda or a function of the main script.

    Raises:
        TypeError: without cloudpickle (a dependency, but it may be missing): it needs that.
        Exception: whatever the object's own __reduce__ raises.
    """
    try:
        import cloudpickle
    except ImportError:
        return _plain(obj)
    return bytes(cloudpickle.dumps(obj, protocol=4))


class _Plain(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, types.FunctionType)) and (obj.__module__ == "__main__" or "<" in obj.__qualname__):
            raise TypeError(f"lwcc: {obj.__qualname__!r} {_MISSING}")
        return NotImplemented


def _plain(obj: Any) -> bytes:
    data = io.BytesIO()
    _Plain(data, protocol=4).dump(obj)
    return data.getvalue()
