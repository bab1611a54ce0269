"""Functional collectives over the backend lwcc, in one compiled graph and outside of it."""

from __future__ import annotations

import copy
import functools

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from casebook import run
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel as DDP


def everything(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Use each functional collective once; x has as many rows as there are ranks."""
    n = x.shape[0]
    world = dist.group.WORLD
    assert world is not None
    return (
        functional.all_reduce(x * 2, "sum", world) + 1,
        functional.all_reduce(x, "avg", world),
        functional.all_gather_tensor(x[0] + 0, 0, world),
        functional.reduce_scatter_tensor(x * 3, "sum", 0, world),
        functional.all_to_all_single(x + 0, [1] * n, [1] * n, world),
        functional.broadcast(x + 1, n - 1, world),
        *functional.all_reduce_coalesced([x + 2, x[0] * 4], "sum", world),
    )


def expected(rows: list[torch.Tensor], rank: int) -> tuple[torch.Tensor, ...]:
    total = torch.stack(rows).sum(0)
    return (
        total * 2 + 1,
        total / len(rows),
        torch.cat([x[0] for x in rows]),
        total[rank : rank + 1] * 3,
        torch.stack([x[rank] for x in rows]),
        rows[-1] + 1,
        total + 2 * len(rows),
        total[0] * 4,
    )


def data(size: int) -> list[torch.Tensor]:
    return [torch.arange(3.0 * size).view(size, 3) + 100 * r for r in range(size)]


def case_functional_collectives(rank: int, size: int) -> None:
    rows = data(size)
    for found, wanted in zip(everything(rows[rank]), expected(rows, rank)):
        torch.testing.assert_close(found.view(-1), wanted.view(-1))


def case_functional_collectives_in_one_compiled_graph(rank: int, size: int) -> None:
    compiled = torch.compile(everything, fullgraph=True)
    rows = data(size)
    for _ in range(3):
        for found, wanted in zip(compiled(rows[rank]), expected(rows, rank)):
            torch.testing.assert_close(found.view(-1), wanted.view(-1))


def case_a_compiled_model_in_ddp(rank: int, size: int) -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    wrapped = torch.compile(DDP(model))
    rows = data(size)
    wrapped(rows[rank]).sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    (model(torch.cat(rows)).sum() / size).backward()
    for found, p in zip(grads, model.parameters()):
        torch.testing.assert_close(found, p.grad)


def case_graphs_break_where_a_group_is_called(rank: int, size: int) -> None:
    lone = nn.Linear(3, 1)

    def work(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = lone(x)
        total, late = y.detach().clone(), y.detach().clone()
        dist.all_reduce(total)
        pending = dist.all_reduce(late, async_op=True)
        pending.wait()
        dist.barrier()
        return y + 1, total + 1, late + 1

    rows = data(size)
    expected = sum(lone(x) for x in rows).detach() + 1
    _, total, late = torch.compile(work, backend="aot_eager")(rows[rank])
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(late, expected)


def case_compiled_wrappers_of_a_whole_model(rank: int, size: int) -> None:
    fsdp = functools.partial(FullyShardedDataParallel, device_id=torch.device("cpu"), use_orig_params=True)
    for wrap in (DDP, fsdp):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        twin = copy.deepcopy(model)
        compiled = torch.compile(wrap(model), backend="aot_eager")
        rows = data(size)
        for _ in range(2):
            torch.testing.assert_close(compiled(rows[rank]), twin(rows[rank]), rtol=1e-4, atol=1e-5)
            compiled(rows[rank]).sum().backward()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("lwcc")
    run(dict(globals()))
    dist.destroy_process_group()
