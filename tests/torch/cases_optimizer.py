"""DistributedOptimizer on any number of ranks, against one process that sees the whole batch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from casebook import raises, run, same_everywhere
from torch import nn
from torch.nn.functional import cross_entropy
from training import DOUBLE, ROWS, SINGLE, Choosing, batch, close, mine, net, one_process, sgd

import lwcc
import lwcc_torch as hvd
from lwcc.memory import is_registered

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "algorithms"


def compare(rank: int, size: int, make: Any, dtype: torch.dtype = torch.float64, **options: Any) -> None:
    """Train on each rank's part and on the whole; demand equal bits over the ranks and equal values with the whole."""
    model = net(dtype)
    alone = copy.deepcopy(model)
    one_process(alone, make(alone.parameters()), 5, dtype)
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters(), **options)
    generator = torch.Generator().manual_seed(rank)
    for step in range(5):
        x, y = batch(step, dtype)
        optimizer.zero_grad()
        order = torch.randperm(4, generator=generator).tolist()
        cross_entropy(model(mine(x, rank, size), order), mine(y, rank, size)).backward()
        optimizer.step()
    same_everywhere(model.parameters())
    close(model, alone, DOUBLE if dtype is torch.float64 else SINGLE)


def case_ranks_match_one_process_on_the_whole_batch(rank: int, size: int) -> None:
    for dtype in (torch.float64, torch.float32):
        compare(rank, size, sgd, dtype)
        compare(rank, size, lambda p: torch.optim.Adam(p, lr=0.01), dtype)
        compare(rank, size, lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1), dtype)


def case_small_buckets_groups_predivision_and_fused_steps_change_nothing(rank: int, size: int) -> None:
    compare(rank, size, sgd, bucket_bytes=1)
    compare(rank, size, sgd, bucket_bytes=700)
    compare(rank, size, sgd, groups=2)
    compare(rank, size, sgd, gradient_predivide_factor=3.0)
    compare(rank, size, lambda p: torch.optim.Adam(p, lr=0.01, foreach=True))
    compare(rank, size, lambda p: torch.optim.AdamW(p, lr=0.01, fused=True))
    compare(rank, size, lambda p: torch.optim.SGD([{"params": list(p)[::2]}], lr=0.01))


def case_an_algorithm_in_python_or_built_in_changes_nothing(rank: int, size: int) -> None:
    compare(rank, size, sgd, algorithm=f"{EXAMPLES}/swing.py:swing")
    compare(rank, size, sgd, algorithm="ring")
    with lwcc.use(f"{EXAMPLES}/circulant.py:circulant"):
        compare(rank, size, sgd, bucket_bytes=700)


def case_lists_of_parameters_are_reduced_together(rank: int, size: int) -> None:
    model = net()
    alone = copy.deepcopy(model)
    one_process(alone, sgd(alone.parameters()), 2, torch.float64)
    groups = [[model.conv.weight, model.head.bias], list(model.branches[0].parameters())]
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), groups=groups, bucket_bytes=1)
    for step in range(2):
        x, y = batch(step)
        optimizer.zero_grad()
        cross_entropy(model(mine(x, rank, size)), mine(y, rank, size)).backward()
        optimizer.step()
    close(model, alone, DOUBLE)
    raises(
        ValueError, "twice", lambda: hvd.DistributedOptimizer(sgd(net().parameters()), groups=[[model.conv.bias] * 2])
    )


def case_sum_adds_and_compression_stays_close(rank: int, size: int) -> None:
    for options, tolerance in (
        ({"op": hvd.Sum}, SINGLE),
        ({"compression": hvd.Compression.fp16}, {"rtol": 0.02, "atol": 2e-3}),
        ({"compression": hvd.Compression.bf16, "gradient_predivide_factor": 2.0}, {"rtol": 0.1, "atol": 1e-2}),
    ):
        model = net(torch.float32)
        alone = copy.deepcopy(model)
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), **options)
        x, y = batch(0, torch.float32)
        cross_entropy(model(mine(x, rank, size)), mine(y, rank, size)).backward()
        optimizer.synchronize()
        cross_entropy(alone(x), y).backward()
        factor = size if "op" in options else 1
        for p, q in zip(model.parameters(), alone.parameters()):
            torch.testing.assert_close(p.grad, q.grad * factor, **tolerance)
        optimizer.step()
        same_everywhere(model.parameters())


def case_gradients_live_in_buckets_and_stay_there(rank: int, size: int) -> None:
    if size == 1:
        return
    model = net(torch.float32).to(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
    for moved, set_to_none in ((False, True), (False, False), (True, True)):
        if moved:
            model.share_memory()  # takes the gradients out of registered memory, and the bucket with them
        for step in range(3):
            x, y = batch(step, torch.float32)
            optimizer.zero_grad(set_to_none=set_to_none)
            cross_entropy(model(mine(x, rank, size)), mine(y, rank, size)).backward()
            optimizer.step()
        first = min(p.grad.data_ptr() for p in model.parameters())
        last = max(p.grad.data_ptr() for p in model.parameters())
        assert last - first < 65536, "gradients are not neighbours"
        assert model.conv.weight.grad.stride() == model.conv.weight.stride()
        assert is_registered(model.head.weight.grad.numpy()) == is_registered(lwcc.empty(64))
    same_everywhere(model.parameters())


def case_backward_passes_accumulate_before_one_reduction(rank: int, size: int) -> None:
    model, passes = net(), 3
    alone = copy.deepcopy(model)
    plain = sgd(alone.parameters())
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), backward_passes_per_step=passes)
    for step in range(3):
        for k in range(passes if step < 2 else 1):  # the last step comes early: leftovers are reduced all the same
            x, y = batch(10 * step + k)
            cross_entropy(alone(x), y).backward()
            cross_entropy(model(mine(x, rank, size)), mine(y, rank, size)).backward()
        plain.step()
        optimizer.step()
        plain.zero_grad()
        optimizer.zero_grad()
    close(model, alone, DOUBLE)
    same_everywhere(model.parameters())
    optimizer.set_backward_passes_per_step(1)
    x, y = batch(0)
    cross_entropy(model(x), y).backward()
    if size > 1:
        raises(AssertionError, "set_backward", lambda: optimizer.set_backward_passes_per_step(2))
        optimizer.zero_grad()
        optimizer.synchronize()
        assert all(p.grad is None for p in model.parameters())
    part = hvd.DistributedOptimizer(sgd(model.parameters()), bucket_bytes=1)
    for _ in range(2):  # the second time in the agreed order
        part.step()
        model.head.bias.sum().backward()
        if size > 1:
            raises(AssertionError, "zero_grad", part.zero_grad)
        part.synchronize()
    part.zero_grad()


def case_clipping_and_schedules_work_on_reduced_gradients(rank: int, size: int) -> None:
    for skip in (True, False):
        model = net()
        alone = copy.deepcopy(model)
        plain = sgd(alone.parameters())
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
        schedules = [torch.optim.lr_scheduler.StepLR(o, 1, gamma=0.5) for o in (plain, optimizer)]
        for step in range(4):
            x, y = batch(step)
            plain.zero_grad()
            optimizer.zero_grad()
            cross_entropy(alone(x), y).backward()
            cross_entropy(model(mine(x, rank, size)), mine(y, rank, size)).backward()
            optimizer.synchronize()
            norms = [nn.utils.clip_grad_norm_(m.parameters(), 0.01) for m in (alone, model)]
            torch.testing.assert_close(norms[0], norms[1], **DOUBLE)
            plain.step()
            if skip:
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                optimizer.step()
            for schedule in schedules:
                schedule.step()
        assert optimizer.param_groups[0]["lr"] == plain.param_groups[0]["lr"] < 0.01
        close(model, alone, DOUBLE)
        same_everywhere(model.parameters())


def case_parameters_without_gradients_are_as_in_one_process(rank: int, size: int) -> None:
    model = net(make=Choosing)
    alone = copy.deepcopy(model)
    decay = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    plain = torch.optim.SGD(alone.parameters(), **decay)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), **decay), bucket_bytes=200)
    g = torch.Generator().manual_seed(3)
    for step in range(5):
        used = [[0, 1], [r for r in range(4) if step % 2 or r], [2] if step == 3 else [0, 3]]
        x = torch.randn(size, 4, generator=g, dtype=torch.float64)
        plain.zero_grad(set_to_none=step != 4)
        optimizer.zero_grad(set_to_none=step != 4)
        sum(alone(x[r], used[r % 3]) for r in range(size)).div(size).backward()
        model(x[rank], used[rank % 3]).backward()
        optimizer.synchronize()
        for p, q in zip(model.parameters(), alone.parameters()):
            assert (p.grad is None) == (q.grad is None)
            if p.grad is not None:
                torch.testing.assert_close(p.grad, q.grad, **DOUBLE)
        plain.step()
        optimizer.step()
        close(model, alone, DOUBLE)
    same_everywhere(model.parameters())


def case_a_generators_loss_may_fill_its_discriminators_gradients(rank: int, size: int) -> None:
    torch.manual_seed(3)
    models = [nn.Linear(4, 6, dtype=torch.float64), nn.Linear(6, 1, dtype=torch.float64)]
    alone = [copy.deepcopy(m) for m in models]
    ours = [hvd.DistributedOptimizer(sgd(m.parameters())) for m in models]
    plain = [sgd(m.parameters()) for m in alone]
    for step in range(4):
        x = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        for (g, d), (og, od), noise in ((models, ours, mine(x, rank, size)), (alone, plain, x)):
            og.zero_grad()
            d(g(noise)).sigmoid().log().mean().neg().backward()
            og.step()
            od.zero_grad(set_to_none=step % 2 == 0)
            d(g(noise).detach()).square().mean().backward()
            od.step()
    for m, a in zip(models, alone):
        close(m, a, DOUBLE)
        same_everywhere(m.parameters())


def case_a_round_whose_backward_failed_is_not_used(rank: int, size: int) -> None:
    model = net()
    alone = copy.deepcopy(model)
    plain, optimizer = sgd(alone.parameters()), hvd.DistributedOptimizer(sgd(model.parameters()))
    for step in range(3):
        x, y = batch(step)
        if size > 1:
            cross_entropy(model(mine(x, rank, size)), mine(y, rank, size)).backward()
            raises(AssertionError, "backward_passes_per_step=1", cross_entropy(model(x), y).backward)
            raises(AssertionError, "step() zero_grad()", optimizer.step)
            raises(AssertionError, "synchronize() zero_grad()", optimizer.synchronize)
            with optimizer.skip_synchronize():
                raises(AssertionError, "zero_grad()", optimizer.step)
        for o, m, a, b in ((optimizer, model, mine(x, rank, size), mine(y, rank, size)), (plain, alone, x, y)):
            o.zero_grad()
            cross_entropy(m(a), b).backward()
            o.step()
    close(model, alone, DOUBLE)
    same_everywhere(model.parameters())


def case_gradients_changed_while_they_are_reduced_are_told(rank: int, size: int) -> None:
    def clip(m: Any) -> None:
        nn.utils.clip_grad_norm_(m.parameters(), 1e-3)

    def replace(m: Any) -> None:
        m.head.weight.grad = m.head.weight.grad * 0.5

    def repoint(m: Any) -> None:
        m.head.weight.grad.data = m.head.weight.grad.data * 0.5

    model = net()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), bucket_bytes=2000)
    for step, change in enumerate((None, clip, replace, repoint, None)):
        x, y = batch(step)
        cross_entropy(model(mine(x, rank, size)), mine(y, rank, size)).backward()
        if change is not None and size > 1:
            change(model)
            raises(RuntimeError, "gradient of changed after backward() synchronize()", optimizer.step)
        else:
            optimizer.synchronize()
            clip(model)
            optimizer.step()
        optimizer.zero_grad()
    same_everywhere(model.parameters())


def case_gradients_may_be_taken_away_after_backward(rank: int, size: int) -> None:
    models = [net() for _ in range(2)]
    plain = sgd(models[1].parameters())
    for m in models:  # one by a hook, before or after those of the optimizer; one by the script
        m.head.weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    optimizer = hvd.DistributedOptimizer(sgd(models[0].parameters()))
    for step in range(4):
        x, y = batch(step)
        for o, m, a, b in ((optimizer, models[0], mine(x, rank, size), mine(y, rank, size)), (plain, models[1], x, y)):
            o.zero_grad()
            cross_entropy(m(a), b).backward()
            m.conv.weight.grad = None
            o.step()
    close(models[0], models[1], DOUBLE)
    same_everywhere(models[0].parameters())


if __name__ == "__main__":
    run(dict(globals()))
