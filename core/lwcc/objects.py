"""Python objects between ranks, pickled as `lwcc.pickling` says.

Peers are authenticated by the job's secret; a pickle is trusted as far as the job's own processes are.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from lwcc import collectives, context
from lwcc.pickling import pickled

if TYPE_CHECKING:
    from lwcc.process_sets import ProcessSet


def _dumps(obj: Any) -> tuple[Any, Optional[Exception]]:
    """Return the pickle's bytes; or what the other ranks are to be told, and the failure: they wait for one of both."""
    try:
        return np.frombuffer(pickled(obj), np.uint8), None
    except Exception as error:  # whatever the object's own __reduce__ raises
        return np.frombuffer(f"{type(error).__name__}: {error}".encode("utf-8", "replace"), np.uint8), error


def _not_pickled(what: str, rank: int, text: Any) -> ValueError:
    return ValueError(f"lwcc: {what}: rank {rank} cannot pickle its object: {bytes(text).decode()}")


def broadcast_object(
    obj: Any = None, root_rank: int = 0, *, name: Optional[str] = None, process_set: Optional[ProcessSet] = None
) -> Any:
    """Return the object of `root_rank` on every rank; on the root it is `obj` itself.

    Args:
        obj: any object that can be pickled; looked at on the root only. Lengths are 64 bits.
        root_rank: a global rank.
        name: base of the names of the two broadcasts; default "broadcast_object".
        process_set: the ranks that take part.

    Raises:
        ValueError: the root cannot pickle the object; on the root what pickle raises.
        LwccError: as `broadcast`.
    """
    base = name or "broadcast_object"
    root = context.rank() == root_rank
    data, failure = _dumps(obj) if root else (np.empty(0, np.uint8), None)
    length = np.array([-data.size if failure else data.size], np.int64)
    collectives.broadcast_(length, root_rank, name=f"{base}.length", process_set=process_set)
    if not root:
        data = np.empty(abs(int(length[0])), np.uint8)
    data = collectives.broadcast(data, root_rank, name=f"{base}.data", process_set=process_set)
    if failure is not None:
        raise failure
    if length[0] < 0:
        raise _not_pickled(base, root_rank, data)
    return obj if root else pickle.loads(memoryview(data))


def allgather_object(obj: Any, *, name: Optional[str] = None, process_set: Optional[ProcessSet] = None) -> list[Any]:
    """Return the objects of all ranks of the set, in rank order.

    Args:
        obj: any object that can be pickled.
        name: base of the names of the two collectives; default "allgather_object".
        process_set: the ranks that take part.

    Raises:
        ValueError: another rank cannot pickle its object; on that rank what pickle raises.
        LwccError: as `allgather`.
    """
    base = name or "allgather_object"
    data, failure = _dumps(obj)
    length = np.array([-data.size if failure else data.size], np.int64)
    lengths = collectives.allgather(length, name=f"{base}.length", process_set=process_set)
    everything = collectives.allgather(data, name=f"{base}.data", process_set=process_set)
    if failure is not None:
        raise failure
    ends = np.cumsum(abs(lengths))
    parts = [everything[end - abs(n) : end] for n, end in zip(lengths, ends)]
    for i in np.flatnonzero(lengths < 0):
        raise _not_pickled(base, process_set.ranks[i] if process_set and process_set.ranks else int(i), parts[i])
    return [pickle.loads(memoryview(part)) for part in parts]
