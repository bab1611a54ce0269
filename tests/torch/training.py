"""Models, batches and comparisons that the cases of the optimizer share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

ROWS = 12  # of the whole batch: divides by 1, 2, 3 and 4 ranks
DOUBLE, SINGLE = {"rtol": 1e-12, "atol": 1e-13}, {"rtol": 2e-4, "atol": 2e-6}


class Net(nn.Module):
    """Convolution, norm-free; independent branches, whose gradients arrive in the order in which they are summed."""

    def __init__(self, branches: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.branches = nn.ModuleList(nn.Linear(4 * 36, 5) for _ in range(branches))
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor, order: Iterable[int] = ()) -> torch.Tensor:
        h = torch.relu(self.conv(x)).flatten(1)
        parts = {i: torch.tanh(self.branches[i](h)) for i in order or range(len(self.branches))}
        return self.head(torch.stack([parts[i] for i in range(len(self.branches))]).sum(0))


def batch(step: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(ROWS, 3, 6, 6, generator=g, dtype=torch.float64).to(dtype)
    return x, torch.randint(0, 3, (ROWS,), generator=g)


def mine(tensor: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    return tensor[rank * (ROWS // size) : (rank + 1) * (ROWS // size)]


def net(dtype: torch.dtype = torch.float64, make: Callable[[], nn.Module] = Net) -> nn.Module:
    torch.manual_seed(7)
    return make().to(dtype)


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)


def close(a: nn.Module, b: nn.Module, tolerance: Any) -> None:
    for (name, p), q in zip(a.named_parameters(), b.parameters()):
        torch.testing.assert_close(p, q, msg=lambda text, n=name: f"{n}: {text}", **(tolerance or {}))


def one_process(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, dtype: torch.dtype) -> None:
    for step in range(steps):
        x, y = batch(step, dtype)
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


class Choosing(nn.Module):
    """Uses the layers that it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: torch.Tensor, used: Iterable[int]) -> torch.Tensor:
        for i in used:
            x = torch.tanh(self.layers[i](x))
        return x.square().mean()
