"""LWCC for TensorFlow, under Horovod's names: `import lwcc_tf as hvd`; for Keras `import lwcc_tf.keras as hvd`.

import lwcc_tf as lwcc
lwcc.init()
tape = lwcc.DistributedGradientTape(tape)
optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
lwcc.broadcast_variables(model.variables, root_rank=0)

Names are loaded when they are first used, so that Keras with another backend gets on without TensorFlow.
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
    from lwcc_tf.compression import Compression as Compression
    from lwcc_tf.compression import Compressor as Compressor
    from lwcc_tf.ops import allgather as allgather
    from lwcc_tf.ops import allreduce as allreduce
    from lwcc_tf.ops import alltoall as alltoall
    from lwcc_tf.ops import barrier as barrier
    from lwcc_tf.ops import broadcast as broadcast
    from lwcc_tf.ops import broadcast_ as broadcast_
    from lwcc_tf.ops import grouped_allgather as grouped_allgather
    from lwcc_tf.ops import grouped_allreduce as grouped_allreduce
    from lwcc_tf.ops import grouped_reducescatter as grouped_reducescatter
    from lwcc_tf.ops import join as join
    from lwcc_tf.ops import local_rank_op as local_rank_op
    from lwcc_tf.ops import local_size_op as local_size_op
    from lwcc_tf.ops import process_set_included_op as process_set_included_op
    from lwcc_tf.ops import rank_op as rank_op
    from lwcc_tf.ops import reducescatter as reducescatter
    from lwcc_tf.ops import size_op as size_op
    from lwcc_tf.optimizer import DistributedOptimizer as DistributedOptimizer
    from lwcc_tf.state import BroadcastGlobalVariablesHook as BroadcastGlobalVariablesHook
    from lwcc_tf.state import allgather_object as allgather_object
    from lwcc_tf.state import broadcast_global_variables as broadcast_global_variables
    from lwcc_tf.state import broadcast_object as broadcast_object
    from lwcc_tf.state import broadcast_object_fn as broadcast_object_fn
    from lwcc_tf.state import broadcast_variables as broadcast_variables
    from lwcc_tf.sync_batch_norm import SyncBatchNormalization as SyncBatchNormalization
    from lwcc_tf.tape import DistributedGradientTape as DistributedGradientTape
    from lwcc_tf.tape import PartialDistributedGradientTape as PartialDistributedGradientTape

_HOME = {
    "lwcc": "__version__",
    "lwcc.context": (
        "cross_rank cross_size init is_homogeneous is_initialized local_rank local_size rank shutdown size"
    ),
    "lwcc.capabilities": (
        "ccl_built cuda_built ddl_built gloo_built gloo_enabled mpi_built mpi_enabled mpi_threads_supported "
        "nccl_built rocm_built"
    ),
    "lwcc.errors": ("HorovodVersionMismatchError HostsUpdatedInterrupt LwccError Mismatch PeerLost ShutDown Timeout"),
    "lwcc.inspection": "start_timeline stats stop_timeline",
    "lwcc.ops": "Adasum Average Max Min Product Sum",
    "lwcc.running": "run",
    "lwcc.process_sets": "ProcessSet add_process_set global_process_set remove_process_set",
    "lwcc_tf.compression": "Compression Compressor",
    "lwcc_tf.ops": (
        "allgather allreduce alltoall barrier broadcast broadcast_ grouped_allgather grouped_allreduce "
        "grouped_reducescatter join local_rank_op local_size_op process_set_included_op rank_op reducescatter "
        "size_op"
    ),
    "lwcc_tf.optimizer": "DistributedOptimizer",
    "lwcc_tf.state": (
        "BroadcastGlobalVariablesHook allgather_object broadcast_global_variables broadcast_object broadcast_object_fn "
        "broadcast_variables"
    ),
    "lwcc_tf.sync_batch_norm": "SyncBatchNormalization",
    "lwcc_tf.tape": "DistributedGradientTape PartialDistributedGradientTape",
}
_WHERE = {name: module for module, names in _HOME.items() for name in names.split()}
_WHERE["HorovodInternalError"] = "lwcc.errors"
_INSTEAD = {
    "data": "not here; shard with dataset.shard(size(), rank())",
    "elastic": "not here; the ranks of a job are fixed: save checkpoints and start again",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name in _INSTEAD:
        raise AttributeError(f"lwcc_tf has no {name}: it is {_INSTEAD[name]}")
    home = _WHERE.get(name)
    if home is None:
        raise AttributeError(f"module 'lwcc_tf' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), "LwccError" if name == "HorovodInternalError" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
