"""LWCC for Keras 3 (over TensorFlow or PyTorch) and tf_keras, under Horovod's names.

import lwcc_tf.keras as lwcc
lwcc.init()
model.compile(optimizer=lwcc.DistributedOptimizer(keras.optimizers.Adam()), loss=..., metrics=...)
model.fit(..., callbacks=[lwcc.callbacks.BroadcastGlobalVariablesCallback(0)])

Names are loaded when they are first used: the backend is Keras's to choose.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lwcc import __version__ as __version__
    from lwcc.capabilities import ccl_built as ccl_built
    from lwcc.capabilities import cuda_built as cuda_built
    from lwcc.capabilities import ddl_built as ddl_built
    from lwcc.capabilities import gloo_built as gloo_built
    from lwcc.capabilities import gloo_enabled as gloo_enabled
    from lwcc.capabilities import mpi_built as mpi_built
    from lwcc.capabilities import mpi_enabled as mpi_enabled
    from lwcc.capabilities import mpi_threads_supported as mpi_threads_supported
    from lwcc.capabilities import nccl_built as nccl_built
    from lwcc.capabilities import rocm_built as rocm_built
    from lwcc.collectives import barrier as barrier
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
    from lwcc.errors import HorovodVersionMismatchError as HorovodVersionMismatchError
    from lwcc.errors import HostsUpdatedInterrupt as HostsUpdatedInterrupt
    from lwcc.errors import LwccError as LwccError
    from lwcc.errors import Mismatch as Mismatch
    from lwcc.errors import PeerLost as PeerLost
    from lwcc.errors import ShutDown as ShutDown
    from lwcc.errors import Timeout as Timeout
    from lwcc.inspection import start_timeline as start_timeline
    from lwcc.inspection import stats as stats
    from lwcc.inspection import stop_timeline as stop_timeline
    from lwcc.joining import join as join
    from lwcc.objects import allgather_object as allgather_object
    from lwcc.objects import broadcast_object as broadcast_object
    from lwcc.ops import Adasum as Adasum
    from lwcc.ops import Average as Average
    from lwcc.ops import Max as Max
    from lwcc.ops import Min as Min
    from lwcc.ops import Product as Product
    from lwcc.ops import Sum as Sum
    from lwcc.process_sets import ProcessSet as ProcessSet
    from lwcc.process_sets import add_process_set as add_process_set
    from lwcc.process_sets import global_process_set as global_process_set
    from lwcc.process_sets import remove_process_set as remove_process_set
    from lwcc.running import run as run
    from lwcc_tf.keras import callbacks as callbacks
    from lwcc_tf.keras.model import allgather as allgather
    from lwcc_tf.keras.model import allreduce as allreduce
    from lwcc_tf.keras.model import broadcast as broadcast
    from lwcc_tf.keras.model import load_model as load_model
    from lwcc_tf.keras.model import reducescatter as reducescatter
    from lwcc_tf.keras.optimizer import DistributedOptimizer as DistributedOptimizer
    from lwcc_tf.keras.optimizer import PartialDistributedOptimizer as PartialDistributedOptimizer

_HOME = {
    "lwcc": "__version__",
    "lwcc.context": (
        "cross_rank cross_size init is_homogeneous is_initialized local_rank local_size rank shutdown size"
    ),
    "lwcc.capabilities": (
        "ccl_built cuda_built ddl_built gloo_built gloo_enabled mpi_built mpi_enabled mpi_threads_supported "
        "nccl_built rocm_built"
    ),
    "lwcc.collectives": "barrier",
    "lwcc.errors": ("HorovodVersionMismatchError HostsUpdatedInterrupt LwccError Mismatch PeerLost ShutDown Timeout"),
    "lwcc.inspection": "start_timeline stats stop_timeline",
    "lwcc.joining": "join",
    "lwcc.objects": "allgather_object broadcast_object",
    "lwcc.ops": "Adasum Average Max Min Product Sum",
    "lwcc.running": "run",
    "lwcc.process_sets": "ProcessSet add_process_set global_process_set remove_process_set",
    "lwcc_tf.keras.model": "allgather allreduce broadcast load_model reducescatter",
    "lwcc_tf.keras.optimizer": "DistributedOptimizer PartialDistributedOptimizer",
}
_WHERE = {name: module for module, names in _HOME.items() for name in names.split()}
_INSTEAD = {
    "broadcast_global_variables": "a function of TensorFlow 1; list callbacks.BroadcastGlobalVariablesCallback(0)",
    "BroadcastGlobalVariablesHook": "a hook of TensorFlow 1; list callbacks.BroadcastGlobalVariablesCallback(0)",
    "data": "not here; shard with dataset.shard(size(), rank())",
    "elastic": "not here; the ranks of a job are fixed: save checkpoints and start again",
}

__all__ = sorted([*_WHERE, "Compression", "HorovodInternalError", "callbacks"])


def _find(name: str) -> Any:
    if name == "callbacks":
        return importlib.import_module("lwcc_tf.keras.callbacks")
    if name == "Compression":
        return importlib.import_module("lwcc_tf.keras.backend").compression()
    if name == "HorovodInternalError":
        return importlib.import_module("lwcc.errors").LwccError
    if name in _INSTEAD:
        raise AttributeError(f"lwcc_tf.keras has no {name}: it is {_INSTEAD[name]}")
    if name not in _WHERE:
        raise AttributeError(f"module 'lwcc_tf.keras' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __getattr__(name: str) -> Any:
    value = globals()[name] = _find(name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
