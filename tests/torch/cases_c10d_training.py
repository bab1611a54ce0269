"""What is built on torch.distributed, over the backend lwcc, against one process on the whole batch."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from casebook import raises, run, same_everywhere
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel as DDP

from lwcc_torch import Compression, Mismatch, Sum
from lwcc_torch.hooks import comm_hook

STEPS, ROWS = 3, 4


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))


def batches(size: int) -> list[torch.Tensor]:
    return [torch.randn(ROWS * size, 6, generator=torch.Generator().manual_seed(i)) for i in range(STEPS)]


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(x).square().mean()
    return loss


def alone(model: nn.Module, size: int) -> nn.Module:
    """Train a copy of the model in this process on the batches of all ranks."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for x in batches(size):
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()
    return model


def train(model: nn.Module, optimizer: Any, rank: int, size: int) -> None:
    for x in batches(size):
        optimizer.zero_grad()
        loss_of(model, x[ROWS * rank :][:ROWS]).backward()
        optimizer.step()


def equal(a: nn.Module, b: nn.Module, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    for p, q in zip(a.parameters(), b.parameters()):
        torch.testing.assert_close(p.detach(), q.detach(), rtol=rtol, atol=atol)


def ddp_as_alone(rank: int, size: int, prepare: Callable[[DDP], None] = lambda _: None, **settings: Any) -> None:
    model = network()
    expected = alone(model, size)
    wrapped = DDP(model, bucket_cap_mb=0.0005, **settings)
    prepare(wrapped)
    train(wrapped, torch.optim.Adam(wrapped.parameters(), lr=0.01), rank, size)
    equal(model, expected)
    same_everywhere(model.parameters())


def case_ddp_trains_as_one_process_would(rank: int, size: int) -> None:
    ddp_as_alone(rank, size)
    ddp_as_alone(rank, size, gradient_as_bucket_view=True)
    ddp_as_alone(rank, size, static_graph=True)
    ddp_as_alone(rank, size, find_unused_parameters=True)


def case_ddp_takes_the_parameters_and_buffers_of_rank_0(rank: int, size: int) -> None:
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    wrapped = DDP(model)
    same_everywhere(model.parameters())
    for _ in range(3):
        wrapped(torch.randn(5, 3)).sum().backward()
    wrapped(torch.randn(5, 3))
    state = wrapped.module.state_dict()
    wrapped._sync_buffers()
    same_everywhere(v for k, v in state.items() if "running" in k)


def case_ddp_with_parameters_unused_on_a_rank(rank: int, size: int) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(3, 1) for _ in range(size))

        def forward(self, x: torch.Tensor) -> Any:
            return self.parts[rank](x)

    model = Branches()
    wrapped = DDP(model, find_unused_parameters=True)
    for _ in range(2):
        model.zero_grad()
        wrapped(torch.ones(2, 3)).sum().backward()
    for part in model.parts:
        torch.testing.assert_close(part.bias.grad, torch.tensor([2 / size]))
    same_everywhere(p.grad for p in model.parameters())


def case_ddp_no_sync_accumulates(rank: int, size: int) -> None:
    model = network()
    reference = copy.deepcopy(model)
    wrapped = DDP(model)
    x = batches(size)[0]
    mine = x[ROWS * rank :][:ROWS]
    with wrapped.no_sync():
        loss_of(wrapped, mine[:2]).backward()
    loss_of(wrapped, mine[2:]).backward()
    (2 * loss_of(reference, x)).backward()
    for p, q in zip(model.parameters(), reference.parameters()):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6)


def case_ddp_joins_with_uneven_batches(rank: int, size: int) -> None:
    for by_all in (True, False):
        model = nn.Linear(2, 1, bias=False)
        wrapped = DDP(model)
        with Join([wrapped], divide_by_initial_world_size=by_all):
            for i in range(2 + rank):
                model.zero_grad()
                wrapped(torch.full((1, 2), float(i + 1))).sum().backward()
                gc.collect()
        last = model.weight.grad.clone()
        gathered = [torch.zeros_like(last) for _ in range(size)]
        dist.all_gather(gathered, last)
        # the last step of rank r has the ranks r.. only; their sum is divided by all ranks, or by those
        expected = [(2.0 + r) * (size - r) / (size if by_all else size - r) for r in range(size)]
        torch.testing.assert_close(torch.stack([g[0, 0] for g in gathered]), torch.tensor(expected))


def case_comm_hooks(rank: int, size: int) -> None:
    ddp_as_alone(rank, size, lambda m: m.register_comm_hook(None, default_hooks.allreduce_hook))

    def own(state, bucket):  # type: ignore[no-untyped-def]  # torch compares the annotations, if there are any
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda f: f.value()[0] / size)

    ddp_as_alone(rank, size, lambda m: m.register_comm_hook(None, own))
    model = network()
    expected = alone(model, size)
    wrapped = DDP(model)
    wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(wrapped, torch.optim.Adam(wrapped.parameters(), lr=0.01), rank, size)
    equal(model, expected, rtol=0.1, atol=0.03)
    same_everywhere(model.parameters())
    model = network()
    wrapped = DDP(model)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.01), rank, size)
    same_everywhere(model.parameters())


def case_the_hook_with_algorithms_and_compression(rank: int, size: int) -> None:
    for algorithm in ("ring", "recursive_doubling", None):
        ddp_as_alone(rank, size, lambda m, a=algorithm: m.register_comm_hook(None, comm_hook(algorithm=a)))
    for compression in (Compression.fp16, Compression.bf16):
        model = network()
        expected = alone(model, size)
        wrapped = DDP(model)
        wrapped.register_comm_hook(dist.group.WORLD, comm_hook(algorithm="circulant", compression=compression))
        train(wrapped, torch.optim.Adam(wrapped.parameters(), lr=0.01), rank, size)
        equal(model, expected, rtol=0.1, atol=0.03)
        same_everywhere(model.parameters())
    raises(ValueError, "backend lwcc", lambda: comm_hook()(object(), None))
    apart = dist.group.WORLD.reduce_by(torch.ones(3), Sum, "ring" if rank else None)
    raises(Mismatch, "algorithm ring", apart.wait)
    dist.barrier()


def case_ddp_raises_what_failed_in_its_backward(rank: int, size: int) -> None:
    for hook in (None, default_hooks.fp16_compress_hook, comm_hook()):
        wrapped = DDP(network())
        if hook is not None:
            wrapped.register_comm_hook(None, hook)
        early = dist.all_reduce(torch.ones(3), async_op=True) if rank == size - 1 else None
        raises(RuntimeError, "the ranks disagree rank", lambda m=wrapped: m(torch.ones(1, 6)).sum().backward())
        raises(Mismatch, "the ranks disagree", lambda e=early: e.wait() if e else dist.all_reduce(torch.ones(3)))
    x = torch.ones(2)
    dist.all_reduce(x)
    assert x.tolist() == [size, size]


def case_zero_redundancy_optimizer(rank: int, size: int) -> None:
    model = network()
    expected = alone(model, size)
    wrapped = DDP(model)
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.Adam, lr=0.01)
    train(wrapped, optimizer, rank, size)
    equal(model, expected)
    optimizer.consolidate_state_dict(0)
    if rank == 0:
        assert len(optimizer.state_dict()["state"]) == len(list(model.parameters()))


def case_fsdp1(rank: int, size: int) -> None:
    model = network()
    expected = alone(model, size)
    wrapped = FullyShardedDataParallel(copy.deepcopy(model), device_id=torch.device("cpu"), use_orig_params=True)
    train(wrapped, torch.optim.Adam(wrapped.parameters(), lr=0.01), rank, size)
    with FullyShardedDataParallel.summon_full_params(wrapped):
        equal(wrapped, expected)


def case_fsdp2(rank: int, size: int) -> None:
    model = network()
    expected = alone(model, size)
    mesh = init_device_mesh("cpu", (size,))
    sharded = copy.deepcopy(model)
    for layer in sharded:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    train(sharded, torch.optim.Adam(sharded.parameters(), lr=0.01), rank, size)
    for p, q in zip(sharded.parameters(), expected.parameters()):
        assert isinstance(p, DTensor)
        torch.testing.assert_close(p.full_tensor().detach(), q.detach(), rtol=1e-4, atol=1e-5)


def case_dtensor(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    a, b = torch.randn(2 * size + 1, 4), torch.randn(4, 3 * size)
    for left, right in ((Shard(0), Replicate()), (Replicate(), Shard(1)), (Shard(1), Shard(0))):
        product = distribute_tensor(a, mesh, [left]) @ distribute_tensor(b, mesh, [right])
        torch.testing.assert_close(product.full_tensor(), a @ b)
    rows = distribute_tensor(a, mesh, [Shard(0)])
    assert torch.equal(rows.redistribute(mesh, [Shard(1)]).full_tensor(), a)
    torch.testing.assert_close(rows.sum().full_tensor(), a.sum())


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("lwcc")
    run(dict(globals()))
    dist.destroy_process_group()
