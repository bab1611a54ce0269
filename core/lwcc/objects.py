"""Python objects between ranks, pickled (by cloudpickle if it is installed). Peers are authenticated by the job's
secret; a pickle is trusted as far as the job's own processes are."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from lwcc import collectives, context

if TYPE_CHECKING:
    from lwcc.process_sets import ProcessSet


def _dumps(obj: Any) -> Any:
    try:
        import cloudpickle
    except ImportError:
        return np.frombuffer(pickle.dumps(obj, protocol=4), np.uint8)
    return np.frombuffer(cloudpickle.dumps(obj, protocol=4), np.uint8)


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
        LwccError: as `broadcast`.
    """
    base = name or "broadcast_object"
    root = context.rank() == root_rank
    data = _dumps(obj) if root else None
    length = np.array([data.size if data is not None else 0], np.int64)
    collectives.broadcast_(length, root_rank, name=f"{base}.length", process_set=process_set)
    if data is None:
        data = np.empty(int(length[0]), np.uint8)
    data = collectives.broadcast(data, root_rank, name=f"{base}.data", process_set=process_set)
    return obj if root else pickle.loads(memoryview(data))


def allgather_object(obj: Any, *, name: Optional[str] = None, process_set: Optional[ProcessSet] = None) -> list[Any]:
    """Return the objects of all ranks of the set, in rank order.

    Args:
        obj: any object that can be pickled.
        name: base of the names of the two collectives; default "allgather_object".
        process_set: the ranks that take part.

    Raises:
        LwccError: as `allgather`.
    """
    base = name or "allgather_object"
    data = _dumps(obj)
    lengths = collectives.allgather(np.array([data.size], np.int64), name=f"{base}.length", process_set=process_set)
    everything = collectives.allgather(data, name=f"{base}.data", process_set=process_set)
    ends = np.cumsum(lengths)
    return [pickle.loads(memoryview(everything[end - n : end])) for n, end in zip(lengths, ends)]
