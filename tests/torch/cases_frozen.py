"""Parameters that are frozen on some ranks: against copies of all ranks' models, averaged by hand in one process."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, Optional

import torch
from casebook import raises, run, same_everywhere
from torch import nn
from training import DOUBLE, close

import lwcc_torch as hvd
from lwcc_torch import engine

LOOSE = {"rtol": 0.02, "atol": 2e-3}


def layers(count: int = 4, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(count))).to(dtype)


def freeze(model: nn.Sequential, frozen: Iterable[int]) -> nn.Sequential:
    for i, layer in enumerate(model):
        layer.requires_grad_(i not in frozen)
    return model


def decaying(params: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.1)


def trained(params: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    return decaying([p for p in params if p.requires_grad])


def loss(model: nn.Module, rank: int, step: int) -> Optional[torch.Tensor]:
    dtype = next(model.parameters()).dtype
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(100 * step + rank), dtype=torch.float64)
    value = model(x.to(dtype)).square().mean()
    return value if value.requires_grad else None


def backward(model: nn.Module, rank: int, step: int, factor: float = 1.0) -> None:
    value = loss(model, rank, step)
    if value is not None:
        (value * factor).backward()


def average(models: Sequence[nn.Module], divisor: float) -> None:
    """Do by hand what the optimizer promises: a rank without a gradient counts as zero."""
    for params in zip(*(m.parameters() for m in models)):
        grads = [p.grad for p in params if p.grad is not None and p.requires_grad]
        for p in params:
            if p.requires_grad:
                p.grad = sum(grads[1:], grads[0]) / divisor if grads else None


def follow(rank: int, size: int, plan: Any, *, make: Any = decaying, passes: int = 1, **options: Any) -> None:
    """Train with what `plan(rank, step)` says is frozen, and the same in copies of all ranks' models."""
    dtype = torch.float32 if "compression" in options else torch.float64
    models = [freeze(layers(dtype=dtype), plan(r, 0)) for r in range(size)]
    plain = [make(m.parameters()) for m in models]
    model = copy.deepcopy(models[rank])
    optimizer = hvd.DistributedOptimizer(
        make(model.parameters()), model.named_parameters(), backward_passes_per_step=passes, **options
    )
    for step in range(6):
        for r, (m, o) in enumerate(zip((*models, model), (*plain, optimizer))):
            o.zero_grad(set_to_none=step != 2)
            freeze(m, plan(r if m is not model else rank, step))
            for k in range(passes):
                backward(m, r if m is not model else rank, step + 10 * k)
        average(models, 1 if options.get("op") == hvd.Sum else size)
        for o in (*plain, optimizer):
            o.step()
        close(model, models[rank], LOOSE if "compression" in options else DOUBLE)


def one_each(rank: int, step: int) -> list[int]:
    """Rank 0 leaves out the first layer, rank 1 the third; nobody trains the last."""
    return [3, *([0] if rank == 0 else [2] if rank == 1 else [])]


def case_frozen_before_wrapping(rank: int, size: int) -> None:
    for make in (decaying, trained):
        for options in (
            {}, {"bucket_bytes": 1}, {"groups": 2}, {"op": hvd.Sum}, {"passes": 2, "bucket_bytes": 100},
            {"gradient_predivide_factor": 2.0}, {"compression": hvd.Compression.fp16, "bucket_bytes": 100},
        ):  # fmt: skip
            follow(rank, size, one_each, make=make, **options)


def case_freezing_and_thawing_later(rank: int, size: int) -> None:
    def thaw_alone(rank: int, step: int) -> list[int]:
        return [2, 3] if step < 2 or rank else [3]  # on rank 0 alone something that nobody trained before

    def thaw_in_turns(rank: int, step: int) -> list[int]:
        return [i for i in range(4) if i != (step + rank) % 4]

    def nothing_at_first(rank: int, step: int) -> list[int]:
        return list(range(4)) if step < 2 else [] if rank == size - 1 and step > 3 else [0]

    def freeze_later(rank: int, step: int) -> list[int]:
        return [] if step < 1 else [0] if step < 3 else [rank, 3] if step < 5 else [0, 1, 2, 3]

    for plan in (thaw_alone, thaw_in_turns, nothing_at_first, freeze_later):
        follow(rank, size, plan)
        follow(rank, size, plan, bucket_bytes=1, passes=2)
        follow(rank, size, plan, groups=2, compression=hvd.Compression.bf16)


def case_lists_of_groups_and_parameters_without_names(rank: int, size: int) -> None:
    models = [freeze(layers(), one_each(r, 0)) for r in range(size)]
    plain = [decaying(m.parameters()) for m in models]
    model = copy.deepcopy(models[rank])
    groups = [[model[0].weight, model[2].bias], [model[1].weight, model[3].weight]]
    optimizer = hvd.DistributedOptimizer(decaying(model.parameters()), groups=groups, bucket_bytes=1)
    for step in range(3):
        for r, (m, o) in enumerate(zip((*models, model), (*plain, optimizer))):
            o.zero_grad()
            backward(m, r if m is not model else rank, step)
        average(models, size)
        for o in (*plain, optimizer):
            o.step()
    close(model, models[rank], DOUBLE)


def case_between_passes_a_parameter_may_thaw(rank: int, size: int) -> None:
    model = freeze(layers(), [0])
    optimizer = hvd.DistributedOptimizer(
        decaying(model.parameters()), model.named_parameters(), backward_passes_per_step=2, bucket_bytes=1
    )
    for step in range(3):
        optimizer.zero_grad()
        freeze(model, [0] if step < 2 else [])
        backward(model, rank, step)
        if step == 1 and rank == 0:
            freeze(model, [])
        backward(model, rank, step)
        optimizer.synchronize()
        gradient = model[0].weight.grad
        assert (gradient is None) == (step == 0 or (step == 1 and rank > 0)), step
        if step == 1 and rank == 0:
            own = torch.autograd.grad(loss(model, rank, step), model[0].weight)[0]
            torch.testing.assert_close(gradient, own / size, **DOUBLE)
        optimizer.step()


def case_the_steady_state_costs_nothing(rank: int, size: int) -> None:
    model = freeze(layers(), one_each(rank, 0))
    optimizer = hvd.DistributedOptimizer(decaying(model.parameters()), model.named_parameters())
    started: list[str] = []
    start = engine.start

    def counting(calls: Any, tensors: Any) -> Any:
        started.extend(call.name for call in calls)
        return start(calls, tensors)

    engine.start = counting
    try:
        for step in range(4):
            optimizer.zero_grad()
            backward(model, rank, step)
            optimizer.step()
            assert sorted(name.split(".")[1] for name in started) == ["layout", "order"], started
    finally:
        engine.start = start


def words(frozen: bool) -> nn.ModuleDict:
    torch.manual_seed(6)
    model = nn.ModuleDict({"words": nn.Embedding(20, 3, sparse=True), "out": nn.Linear(3, 2)}).double()
    model["words"].requires_grad_(not frozen)
    return model


def case_sparse_gradients_of_a_frozen_embedding(rank: int, size: int) -> None:
    for dense in (False, True):
        models = [words(r == 0) for r in range(size)]
        plain = [torch.optim.SGD(m.parameters(), lr=0.5) for m in models]
        model = copy.deepcopy(models[rank])
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(), sparse_as_dense=dense
        )
        for step in range(5):
            for r, (m, o) in enumerate(zip((*models, model), (*plain, optimizer))):
                o.zero_grad()
                m["words"].requires_grad_((r if m is not model else rank) != (0 if step < 3 else size - 1))
                x = torch.tensor([[step, 7, r if m is not model else rank]])
                m["out"](m["words"](x).mean(1)).square().mean().backward()
            average(models, size)
            for o in (*plain, optimizer):
                o.step()
            close(model, models[rank], DOUBLE)


def case_adasum_counts_a_frozen_rank_as_one_that_does_not_step(rank: int, size: int) -> None:
    for make in (decaying, trained):
        model = freeze(layers(), one_each(rank, 0))
        optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters(), op=hvd.Adasum)
        for step in range(4):
            alone = copy.deepcopy(model)
            own = make(alone.parameters())
            if step == 2 and make is decaying and rank == size - 1:
                freeze(model, [])  # the last layer, that nobody trained; where its optimizer has it
                freeze(alone, [])
            own.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            for m, o in ((alone, own), (model, optimizer)):
                o.zero_grad()
                backward(m, rank, step)
            before = [p.detach().clone() for p in model.parameters()]
            own.step()
            optimizer.step()
            for i, (p, q, old) in enumerate(zip(model.parameters(), alone.parameters(), before)):
                wanted = hvd.allreduce(q.detach() - old, op=hvd.Adasum, name=f"wanted.{i}")
                torch.testing.assert_close(p.detach(), old + wanted if p.requires_grad else old, **DOUBLE)


def case_a_process_set_and_join(rank: int, size: int) -> None:
    """Rank r has r + 1 batches in the first epoch and size - r in the second."""
    few = hvd.add_process_set([r for r in range(size) if r != 1]) if size > 2 else None
    model = freeze(layers(), [0] if rank == 0 else [])
    optimizer = hvd.DistributedOptimizer(decaying(model.parameters()), model.named_parameters(), process_set=few)
    if few is None or rank in few.ranks:
        first, other = (p.detach().clone() for p in (model[0].weight, model[1].weight))
        for epoch in range(2):
            for step in range(rank + 1 if epoch == 0 else size - rank):
                optimizer.zero_grad()
                backward(model, rank, step)
                if rank == 0:
                    torch.testing.assert_close(model[0].weight, first, **DOUBLE)
                optimizer.step()
            last = hvd.join(process_set=few)
            assert last == (size - 1 if epoch == 0 else 0)
            hvd.broadcast_parameters(model.state_dict(), root_rank=last, process_set=few)
            first, moved = model[0].weight.detach().clone(), model[1].weight.detach().clone()
            assert not torch.equal(moved, other)
            other = moved
    hvd.barrier()
    assert few is None or hvd.remove_process_set(few)


def case_different_models_are_named(rank: int, size: int) -> None:
    model = freeze(layers(), [0] if rank == 0 else [])
    names = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    for words, named in (("0.weight trained rank 1, rank 0 named_parameters", names), ("8 6 without names", None)):
        optimizer = hvd.DistributedOptimizer(trained(model.parameters()), named)
        for _ in range(2):
            optimizer.zero_grad()
            backward(model, rank, 0)
            raises(hvd.Mismatch, words, optimizer.step)
    optimizer = hvd.DistributedOptimizer(trained(model.parameters()), model.named_parameters())
    backward(model, rank, 0)
    optimizer.step()
    same_everywhere(model[1:].parameters())
    extra = nn.Linear(4, 4).double()
    optimizer = hvd.DistributedOptimizer(trained(model.parameters()), model.named_parameters())
    for step in range(4):
        if step == 1 and rank == 0:
            optimizer.add_param_group({"params": list(extra.parameters())})
        optimizer.zero_grad()
        value = loss(model, rank, step) + (extra.weight.sum() if rank == 0 else 0.0)
        value.backward()
        if step in (0, 3):
            optimizer.step()
        else:
            raises(hvd.Mismatch, "parameters without names rank 0, rank 1", optimizer.step)
        if step == 2 and rank == 0:
            del optimizer.param_groups[-1]
    same_everywhere(model[1:].parameters())


def case_added_too_late_for_a_round(rank: int, size: int) -> None:
    model, extra = layers(), nn.Linear(4, 4).double()
    named = [*model.named_parameters(), ("extra.weight", extra.weight)]
    optimizer = hvd.DistributedOptimizer(decaying(model.parameters()), named)
    for step in range(3):
        optimizer.zero_grad()
        (loss(model, rank, step) + extra.weight.sum() * rank).backward()
        if step == 1:
            optimizer.add_param_group({"params": [extra.weight]})
            raises(AssertionError, "extra.weight added zero_grad", optimizer.step)
        else:
            optimizer.step()
    assert torch.allclose(extra.weight.grad, torch.full((4, 4), sum(range(size)) / size, dtype=torch.float64))
    same_everywhere(model.parameters())


def case_two_optimizers_and_batch_statistics(rank: int, size: int) -> None:
    """The last layer is frozen on rank 0: its first gradient comes after the collectives of the statistics."""
    body = nn.Sequential(nn.Linear(4, 4), hvd.SyncBatchNorm(4))
    head = nn.Linear(4, 2).requires_grad_(rank != 0)
    start = head.weight.detach().clone()
    optimizers = [hvd.DistributedOptimizer(decaying(m.parameters()), m.named_parameters()) for m in (body, head)]
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(step * size + rank))
        head(body(x)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    same_everywhere(body.parameters())
    assert torch.equal(head.weight, start) == (rank == 0)
    hvd.broadcast_parameters(head.state_dict(), root_rank=size - 1)
    hvd.broadcast_optimizer_state(optimizers[0], root_rank=0)
    same_everywhere(head.parameters())


if __name__ == "__main__":
    run(globals())
