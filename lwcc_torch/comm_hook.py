"""How DistributedDataParallel's gradients travel: a communication hook with LWCC's algorithms and compression.

model = DistributedDataParallel(model)
model.register_comm_hook(None, comm_hook(algorithm="ring", compression=lwcc_torch.Compression.bf16))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional

import torch
import torch.distributed

from lwcc.ops import Op
from lwcc_torch.compression import Compression, Compressor

if TYPE_CHECKING:
    from lwcc.authoring import Choice

dist: Any = torch.distributed  # what its stubs leave out


def comm_hook(
    *, algorithm: Optional[Choice] = None, compression: type[Compressor] = Compression.none
) -> Callable[[Any, Any], torch.futures.Future[torch.Tensor]]:
    """Return a hook for `register_comm_hook(state, hook)`; `state` is the process group, None: the default one.

    Args:
        algorithm: an `@lwcc.algorithm`, "file.py:name" or the name of a built-in one; None: see `lwcc.use`.
        compression: how gradients travel; they are averaged after they have been widened again.

    Raises (the hook, out of backward):
        ValueError: the process group is not one of the backend "lwcc"; or there is no such algorithm.
    """

    def hook(state: Any, bucket: Any) -> Any:
        group = dist.group.WORLD if state is None else state
        if not getattr(group, "is_lwcc", False):
            raise ValueError('lwcc: comm_hook works on process groups of the backend "lwcc"; give one as state')
        buffer = bucket.buffer()
        packed, context = compression.compress(buffer)
        work = group.reduce_by(packed, Op.AVERAGE if context is None else Op.SUM, algorithm)

        def widened(done: Any) -> torch.Tensor:
            reduced: torch.Tensor = done.value()[0]
            return reduced if context is None else buffer.copy_(reduced).div_(group.size())

        return work.get_future().then(widened)

    hook.__annotations__ = {}  # torch compares them with its own, which these texts are not
    return hook
