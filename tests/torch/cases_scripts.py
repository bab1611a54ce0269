"""Whole scripts as people write them for Horovod, against one process that sees all data."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from casebook import run, same_everywhere
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from training import DOUBLE, close

import lwcc_torch as hvd

ROWS = 12


def noise(step: int) -> torch.Tensor:
    return torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


def gan_step(g: nn.Module, d: nn.Module, opt_g: Any, opt_d: Any, data: tuple[torch.Tensor, torch.Tensor]) -> None:
    z, real = data
    yes, no = torch.ones(len(z), 1, dtype=z.dtype), torch.zeros(len(z), 1, dtype=z.dtype)
    fake = g(z)
    opt_d.zero_grad()
    (bce(d(real), yes) + bce(d(fake.detach()), no)).backward()
    opt_d.step()
    for p in d.parameters():
        p.requires_grad_(False)
    opt_g.zero_grad()
    bce(d(fake), yes).backward()
    opt_g.step()
    for p in d.parameters():
        p.requires_grad_(True)


def dcgan(at_once: bool) -> Any:
    """As DCGAN's script: the modules are cleared, not the optimizers, and the generator's loss goes through d."""

    def step(g: nn.Module, d: nn.Module, opt_g: Any, opt_d: Any, data: tuple[torch.Tensor, torch.Tensor]) -> None:
        z, real = data
        yes, no = torch.ones(len(z), 1, dtype=z.dtype), torch.zeros(len(z), 1, dtype=z.dtype)
        d.zero_grad()
        fake = g(z)
        losses = bce(d(real), yes), bce(d(fake.detach()), no)
        for loss in (sum(losses),) if at_once else losses:
            loss.backward()  # type: ignore[union-attr]
        opt_d.step()
        g.zero_grad()
        bce(d(fake), yes).backward()
        opt_g.step()

    return step


def case_a_gan_with_two_optimizers(rank: int, size: int) -> None:
    for passes, step_of in ((1, gan_step), (2, dcgan(at_once=False)), (1, dcgan(at_once=True))):
        train_gan(rank, size, passes, step_of)


def train_gan(rank: int, size: int, passes: int, step_of: Any) -> None:
    torch.manual_seed(1)
    g = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    d = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    alone_g, alone_d = copy.deepcopy(g), copy.deepcopy(d)
    plain = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (alone_g, alone_d)]
    made = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (g, d)]
    opt_g = hvd.DistributedOptimizer(made[0], g.named_parameters())
    opt_d = hvd.DistributedOptimizer(made[1], d.named_parameters(), backward_passes_per_step=passes)
    hvd.broadcast_parameters(g.state_dict(), root_rank=0)
    hvd.broadcast_parameters(d.state_dict(), root_rank=0)
    mine = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    for step in range(4):
        z, real = noise(step), noise(100 + step) + 2
        step_of(alone_g, alone_d, plain[0], plain[1], (z, real))
        step_of(g, d, opt_g, opt_d, (z[mine], real[mine]))
    close(g, alone_g, DOUBLE)
    close(d, alone_d, DOUBLE)


def case_accumulation_whose_batches_are_no_multiple(rank: int, size: int) -> None:
    """Seven batches, a step after each three: one is left over at the end of the epoch."""
    torch.manual_seed(2)
    model = nn.Linear(4, 2).double()
    alone = copy.deepcopy(model)
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), backward_passes_per_step=3
    )
    mine = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    for _ in range(2):
        optimizer.zero_grad()
        plain.zero_grad()
        for batch in range(7):
            model(noise(batch)[mine]).square().mean().backward()
            alone(noise(batch)).square().mean().backward()
            if batch % 3 == 2 or batch == 6:
                for o in (optimizer, plain):
                    o.step()
                    o.zero_grad()
    close(model, alone, DOUBLE)
    same_everywhere(model.parameters())


def case_a_layer_frozen_on_some_ranks(rank: int, size: int) -> None:
    """Rank r leaves out layer r: its gradient there counts as zero; a layer frozen everywhere does not move."""
    for groups in (None, 2):
        torch.manual_seed(3)
        model = nn.ModuleList(nn.Linear(4, 4) for _ in range(size + 1)).double()
        before = copy.deepcopy(model)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), groups=groups)
        for p in model[size].parameters():
            p.requires_grad_(False)
        x = noise(1)
        expected = copy.deepcopy(before)
        for i in range(size):
            ((size - 1) / size * expected[i](x).square().mean()).backward()
        optimizer.zero_grad()
        used = [i for i in range(size) if i != rank]
        if used:
            sum(model[i](x).square().mean() for i in used).backward()  # type: ignore[union-attr]
        optimizer.step()
        for layer, old, wanted in zip(model, before, expected):
            for p, q, w in zip(layer.parameters(), old.parameters(), wanted.parameters()):
                torch.testing.assert_close(p, q if w.grad is None or size == 1 else q - w.grad, **DOUBLE)


class Squares(Dataset[Any]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index)]), torch.tensor([float(index * index)])


def case_a_data_loader_forks_workers_after_init(rank: int, size: int) -> None:
    sampler: Any = DistributedSampler(Squares(), num_replicas=size, rank=rank, shuffle=True, seed=1)
    loader = DataLoader(Squares(), batch_size=4, sampler=sampler, num_workers=2, multiprocessing_context="fork")
    torch.manual_seed(4)
    model = nn.Linear(1, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-7))

    def epoch(number: int) -> Iterator[torch.Tensor]:
        sampler.set_epoch(number)
        for x, y in loader:
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            assert torch.equal(x * x, y)
            yield x

    for number in range(2):
        seen = torch.cat([x.reshape(-1) for x in epoch(number)])
        everybody = hvd.allgather(seen)
        assert set(everybody.tolist()) == set(range(48))
    same_everywhere(model.parameters())


if __name__ == "__main__":
    run(globals())
