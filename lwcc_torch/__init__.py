"""LWCC for PyTorch, under Horovod's names: `import lwcc_torch as hvd`.

import lwcc_torch as lwcc
lwcc.init()
optimizer = lwcc.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
lwcc.broadcast_parameters(model.state_dict(), root_rank=0)
lwcc.broadcast_optimizer_state(optimizer, root_rank=0)
"""

from __future__ import annotations

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
from lwcc_torch import elastic as elastic
from lwcc_torch.batchnorm import SyncBatchNorm as SyncBatchNorm
from lwcc_torch.compression import Compression as Compression
from lwcc_torch.compression import Compressor as Compressor
from lwcc_torch.joining import join as join
from lwcc_torch.ops import allgather as allgather
from lwcc_torch.ops import allgather_async as allgather_async
from lwcc_torch.ops import allreduce as allreduce
from lwcc_torch.ops import allreduce_ as allreduce_
from lwcc_torch.ops import allreduce_async as allreduce_async
from lwcc_torch.ops import allreduce_async_ as allreduce_async_
from lwcc_torch.ops import alltoall as alltoall
from lwcc_torch.ops import alltoall_async as alltoall_async
from lwcc_torch.ops import barrier as barrier
from lwcc_torch.ops import broadcast as broadcast
from lwcc_torch.ops import broadcast_ as broadcast_
from lwcc_torch.ops import broadcast_async as broadcast_async
from lwcc_torch.ops import broadcast_async_ as broadcast_async_
from lwcc_torch.ops import grouped_allgather as grouped_allgather
from lwcc_torch.ops import grouped_allgather_async as grouped_allgather_async
from lwcc_torch.ops import grouped_allreduce as grouped_allreduce
from lwcc_torch.ops import grouped_allreduce_ as grouped_allreduce_
from lwcc_torch.ops import grouped_allreduce_async as grouped_allreduce_async
from lwcc_torch.ops import grouped_allreduce_async_ as grouped_allreduce_async_
from lwcc_torch.ops import grouped_reducescatter as grouped_reducescatter
from lwcc_torch.ops import grouped_reducescatter_async as grouped_reducescatter_async
from lwcc_torch.ops import poll as poll
from lwcc_torch.ops import reducescatter as reducescatter
from lwcc_torch.ops import reducescatter_async as reducescatter_async
from lwcc_torch.ops import synchronize as synchronize
from lwcc_torch.optimizer import DistributedOptimizer as DistributedOptimizer
from lwcc_torch.sparse import SparseHandle as SparseHandle
from lwcc_torch.sparse import sparse_allreduce_async as sparse_allreduce_async
from lwcc_torch.state import allgather_object as allgather_object
from lwcc_torch.state import broadcast_object as broadcast_object
from lwcc_torch.state import broadcast_optimizer_state as broadcast_optimizer_state
from lwcc_torch.state import broadcast_parameters as broadcast_parameters

HorovodInternalError = LwccError
