"""SyncBatchNorm: batch normalisation over the batches of all ranks, on CPU, of any size each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from lwcc import ops as core
from lwcc.ops import Op
from lwcc_torch import engine
from lwcc_torch.engine import Call

if TYPE_CHECKING:
    from lwcc.process_sets import ProcessSet

_layers = 0


def _summed(tensor: torch.Tensor, name: str, process_set: Optional[ProcessSet]) -> torch.Tensor:
    call = Call(core.ALLREDUCE, name, Op.SUM, process_set=process_set, in_place=True)
    return engine.run([call], [tensor])[0].output


def _shaped(channels: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return channels.reshape(1, -1, *[1] * (x.dim() - 2))


def _over(x: torch.Tensor) -> list[int]:
    return [d for d in range(x.dim()) if d != 1]


class _Normalize(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """(x - mean) / sqrt(var + eps) with the statistics of all ranks; hands out mean, biased variance and count."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, eps: float, name: str, process_set: Optional[ProcessSet]) -> Any:
        channels = x.shape[1]
        wide = x.double()
        # centred by the ranks' joint mean before it is squared: large means cost no digits
        first = torch.cat([wide.sum(_over(x)), wide.new_tensor([x.numel() / max(channels, 1)])])
        first = _summed(first, f"{name}.sum", process_set)
        count = first[-1]
        mean = first[:-1] / count.clamp(min=1)
        centred = wide - _shaped(mean, x)
        var = _summed(centred.square().sum(_over(x)), f"{name}.squares", process_set) / count.clamp(min=1)
        inverse = (var + eps).rsqrt()
        normal = centred * _shaped(inverse, x)
        ctx.save_for_backward(normal.to(x.dtype), inverse, count)
        ctx.name, ctx.process_set = name, process_set
        ctx.mark_non_differentiable(mean, var, count)
        return normal.to(x.dtype), mean, var, count

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> Any:
        normal, inverse, count = ctx.saved_tensors
        wide, n = grad.double(), normal.double()
        sums = torch.cat([wide.sum(_over(grad)), (wide * n).sum(_over(grad))])
        sums = _summed(sums, f"{ctx.name}.grad", ctx.process_set) / count.clamp(min=1)
        total, dots = sums.chunk(2)
        back = (wide - _shaped(total, grad) - n * _shaped(dots, grad)) * _shaped(inverse, grad)
        return back.to(grad.dtype), None, None, None


class SyncBatchNorm(_BatchNorm):  # type: ignore[misc, unused-ignore]
    """Batch normalisation whose statistics are those of all ranks' batches together; else as torch.nn.BatchNorm*d.

    Every rank has to run the same layers forward and backward; each layer has names of its own, so that ranks that run
    different ones stall with their names instead of mixing statistics. Batches may differ in size, also be empty.

    Args:
        num_features: channels, dimension 1 of the input [N, C, ...].
        eps: added to the variance.
        momentum: of the running statistics; None: cumulative average.
        affine: learn weight and bias.
        track_running_stats: keep statistics for eval mode; without, batch statistics serve there too.
        process_set: the ranks that take part; None: all.

    Raises:
        ValueError: an input of fewer than two dimensions.
    """

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: Optional[float] = 0.1, affine: bool = True,
        track_running_stats: bool = True, *, process_set: Optional[ProcessSet] = None,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        global _layers
        self._lwcc_name, self._lwcc_calls, self._lwcc_set = f"syncbn{_layers}", 0, process_set
        _layers += 1

    def _check_input_dim(self, x: torch.Tensor) -> None:
        if x.dim() < 2:
            raise ValueError(f"lwcc: SyncBatchNorm needs an input [N, C, ...], this has {x.dim()} dimensions")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise [N, C, ...]; in training collective over the ranks, and so is its backward."""
        self._check_input_dim(x)
        local = not self.training and self.running_mean is not None
        if local or engine.members(self._lwcc_set) == 1:
            return super().forward(x)
        # several calls of one layer before backward must not share names with each other's gradients
        name = f"{self._lwcc_name}.{self._lwcc_calls % 64}"
        self._lwcc_calls += 1
        apply: Any = _Normalize.apply
        normal, mean, var, count = apply(x, self.eps, name, self._lwcc_set)
        if self.training and self.track_running_stats:
            self._track(mean, var, count)
        if self.weight is None:
            return normal
        return normal * _shaped(self.weight, x) + _shaped(self.bias, x)  # type: ignore[no-any-return]

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, var: torch.Tensor, count: torch.Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        weight = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        unbiased = var * count / (count - 1).clamp(min=1)
        self.running_mean += weight * (mean.to(self.running_mean.dtype) - self.running_mean)
        self.running_var += weight * (unbiased.to(self.running_var.dtype) - self.running_var)
