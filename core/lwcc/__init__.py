"""LWCC: lightweight collective communication.

    import lwcc
    lwcc.init()
    total = lwcc.allreduce(array, op=lwcc.Sum, name="loss")

Names are loaded when they are first used: `import lwcc` starts no thread, reads no variable and loads neither numpy
nor the native module.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lwcc import raw as raw
    from lwcc.authoring import Algorithm as Algorithm
    from lwcc.authoring import algorithm as algorithm
    from lwcc.choosing import load_plugin as load_plugin
    from lwcc.choosing import use as use
    from lwcc.collectives import allgather as allgather
    from lwcc.collectives import allgather_async as allgather_async
    from lwcc.collectives import allreduce as allreduce
    from lwcc.collectives import allreduce_ as allreduce_
    from lwcc.collectives import allreduce_async as allreduce_async
    from lwcc.collectives import allreduce_async_ as allreduce_async_
    from lwcc.collectives import alltoall as alltoall
    from lwcc.collectives import alltoall_async as alltoall_async
    from lwcc.collectives import barrier as barrier
    from lwcc.collectives import barrier_async as barrier_async
    from lwcc.collectives import broadcast as broadcast
    from lwcc.collectives import broadcast_ as broadcast_
    from lwcc.collectives import broadcast_async as broadcast_async
    from lwcc.collectives import broadcast_async_ as broadcast_async_
    from lwcc.collectives import reducescatter as reducescatter
    from lwcc.collectives import reducescatter_async as reducescatter_async
    from lwcc.context import cross_rank as cross_rank
    from lwcc.context import cross_size as cross_size
    from lwcc.context import init as init
    from lwcc.context import is_homogeneous as is_homogeneous
    from lwcc.context import is_initialized as is_initialized
    from lwcc.context import local_rank as local_rank
    from lwcc.context import local_size as local_size
    from lwcc.context import rank as rank
    from lwcc.context import shutdown as shutdown
    from lwcc.context import size as size
    from lwcc.errors import LwccError as LwccError
    from lwcc.errors import Mismatch as Mismatch
    from lwcc.errors import PeerLost as PeerLost
    from lwcc.errors import PlanRefused as PlanRefused
    from lwcc.errors import ProtocolFailure as ProtocolFailure
    from lwcc.errors import ShutDown as ShutDown
    from lwcc.errors import SystemFailure as SystemFailure
    from lwcc.errors import Timeout as Timeout
    from lwcc.errors import Unsupported as Unsupported
    from lwcc.grouped import grouped_allreduce as grouped_allreduce
    from lwcc.grouped import grouped_allreduce_ as grouped_allreduce_
    from lwcc.grouped import grouped_allreduce_async as grouped_allreduce_async
    from lwcc.grouped import grouped_allreduce_async_ as grouped_allreduce_async_
    from lwcc.inspection import algorithms as algorithms
    from lwcc.inspection import plan_text as plan_text
    from lwcc.inspection import start_timeline as start_timeline
    from lwcc.inspection import stats as stats
    from lwcc.inspection import stop_timeline as stop_timeline
    from lwcc.inspection import verify as verify
    from lwcc.joining import join as join
    from lwcc.memory import empty as empty
    from lwcc.objects import allgather_object as allgather_object
    from lwcc.objects import broadcast_object as broadcast_object
    from lwcc.ops import Adasum as Adasum
    from lwcc.ops import Average as Average
    from lwcc.ops import Max as Max
    from lwcc.ops import Min as Min
    from lwcc.ops import Op as Op
    from lwcc.ops import Product as Product
    from lwcc.ops import Sum as Sum
    from lwcc.ops import Ticket as Ticket
    from lwcc.optimizer import DistributedOptimizer as DistributedOptimizer
    from lwcc.plan import Plan as Plan
    from lwcc.plan import Topology as Topology
    from lwcc.process_sets import ProcessSet as ProcessSet
    from lwcc.process_sets import add_process_set as add_process_set
    from lwcc.process_sets import global_process_set as global_process_set
    from lwcc.process_sets import remove_process_set as remove_process_set
    from lwcc.running import RunFailed as RunFailed
    from lwcc.running import run as run
    from lwcc.simulating import Prediction as Prediction
    from lwcc.simulating import simulate as simulate

_HOME = {
    "authoring": "Algorithm algorithm",
    "choosing": "load_plugin use",
    "collectives": (
        "allgather allgather_async allreduce allreduce_ allreduce_async allreduce_async_ alltoall alltoall_async "
        "barrier barrier_async broadcast broadcast_ broadcast_async broadcast_async_ reducescatter reducescatter_async"
    ),
    "context": ("cross_rank cross_size init is_homogeneous is_initialized local_rank local_size rank shutdown size"),
    "errors": "LwccError Mismatch PeerLost PlanRefused ProtocolFailure ShutDown SystemFailure Timeout Unsupported",
    "grouped": "grouped_allreduce grouped_allreduce_ grouped_allreduce_async grouped_allreduce_async_",
    "inspection": "algorithms plan_text start_timeline stats stop_timeline verify",
    "joining": "join",
    "memory": "empty",
    "objects": "allgather_object broadcast_object",
    "ops": "Adasum Average Max Min Op Product Sum Ticket",
    "optimizer": "DistributedOptimizer",
    "plan": "Plan Topology",
    "running": "RunFailed run",
    "simulating": "Prediction simulate",
    "process_sets": "ProcessSet add_process_set global_process_set remove_process_set",
}
_WHERE = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = [*sorted(_WHERE), "raw"]


def __getattr__(name: str) -> Any:
    if name == "raw":
        return importlib.import_module("lwcc.raw")
    home = _WHERE.get(name)
    if home is None:
        raise AttributeError(f"module 'lwcc' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"lwcc.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
