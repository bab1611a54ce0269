"""What scripts do to optimizers: several of them, copies, closures, sparse gradients, other types, errors."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import torch
from casebook import raises, run, same_everywhere
from torch import nn
from torch.nn.functional import cross_entropy
from training import DOUBLE, ROWS, SINGLE, Choosing, batch, close, mine, net, sgd

import lwcc_torch as hvd


def case_two_optimizers_do_not_meet(rank: int, size: int) -> None:
    models = [net(), net(make=Choosing)]
    alone = [copy.deepcopy(m) for m in models]
    optimizers = [hvd.DistributedOptimizer(sgd(m.parameters())) for m in models]
    plain = [sgd(m.parameters()) for m in alone]
    x, y = batch(0)
    for _ in range(3):
        for o in (*optimizers, *plain):
            o.zero_grad()
        for pair, part in ((models, mine(x, rank, size)), (alone, x)):
            labels = mine(y, rank, size) if pair is models else y
            cross_entropy(pair[0](part), labels).backward()
            pair[1](part[:, 0, 0, :4], range(4)).backward()
        for o in (plain[0], plain[1], *(optimizers if rank % 2 else optimizers[::-1])):
            o.step()
    for m, a in zip(models, alone):
        close(m, a, DOUBLE)
        same_everywhere(m.parameters())


def case_closures_are_reduced_each_time(rank: int, size: int) -> None:
    for make in (sgd, lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4)):
        model = net()
        alone = copy.deepcopy(model)
        plain = make(alone.parameters())
        optimizer = hvd.DistributedOptimizer(make(model.parameters()))
        for step in range(2):
            x, y = batch(step)

            def closure(o: Any, m: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                o.zero_grad()
                loss = cross_entropy(m(x), y)
                loss.backward()
                return loss

            expected = plain.step(lambda: closure(plain, alone, x, y))  # noqa: B023
            got = optimizer.step(lambda: closure(optimizer, model, mine(x, rank, size), mine(y, rank, size)))  # noqa: B023
            torch.testing.assert_close(hvd.allreduce(got.detach()), expected.detach(), **DOUBLE)
        close(model, alone, {"rtol": 1e-9, "atol": 1e-11})


def case_the_class_and_its_state_are_the_users(rank: int, size: int) -> None:
    model = net()
    plain = torch.optim.Adam(model.parameters(), lr=0.01)
    calls: list[str] = []
    plain.register_step_pre_hook(lambda *_: calls.append("pre"))
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    assert isinstance(optimizer, torch.optim.Adam) and optimizer.param_groups is plain.param_groups
    x, y = batch(0)
    for _ in range(2):
        optimizer.zero_grad()
        cross_entropy(model(mine(x, rank, size)), mine(y, rank, size)).backward()
        optimizer.step()
        saved = copy.deepcopy(optimizer.state_dict())
        optimizer.load_state_dict(saved)
    assert calls == ["pre", "pre"]
    again = torch.optim.Adam(net().parameters(), lr=0.5)
    again.load_state_dict(saved)
    assert again.param_groups[0]["lr"] == 0.01 and again.state_dict().keys() == saved.keys()

    class Sub(type(optimizer)):  # type: ignore[misc]
        def step(self, closure: Any = None) -> Any:
            calls.append("sub")
            return super().step(closure)

    optimizer.__class__ = Sub
    optimizer.load_state_dict(saved)
    optimizer.zero_grad()
    cross_entropy(model(mine(x, rank, size)), mine(y, rank, size)).backward()
    optimizer.step()
    assert calls.count("sub") == 1 and len(calls) <= 5, calls
    same_everywhere(model.parameters())
    raises(RuntimeError, "copy", copy.deepcopy(optimizer).step)
    raises(ValueError, "already", lambda: hvd.DistributedOptimizer(optimizer))


def case_schedules_and_groups_survive_wrapping_and_loading(rank: int, size: int) -> None:
    model = net()
    plain = sgd(model.conv.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(plain, 0.5)  # before wrapping
    optimizer = hvd.DistributedOptimizer(plain)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # makes new groups
    optimizer.add_param_group({"params": [*model.branches.parameters(), *model.head.parameters()], "lr": 0.05})
    schedule.base_lrs.append(0.05)
    alone = net()
    other = sgd(alone.parameters())
    for step in range(3):
        x, y = batch(step)
        for m, o, a, b in ((model, optimizer, mine(x, rank, size), mine(y, rank, size)), (alone, other, x, y)):
            o.zero_grad()
            cross_entropy(m(a), b).backward()
            o.step()
        schedule.step()
        other.param_groups[0]["lr"] *= 0.5
    assert [g["lr"] for g in optimizer.param_groups] == [0.05 / 8] * 2
    same_everywhere(model.parameters())
    close(model, alone, DOUBLE)


def case_a_dropped_optimizer_takes_its_hooks_along(rank: int, size: int) -> None:
    model = net()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
    known = weakref.ref(optimizer)
    cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
    optimizer.step()
    del optimizer
    gc.collect()
    assert known() is None
    for _ in range(2):  # without hooks nobody minds a second pass
        cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def case_wrong_arguments_are_refused(rank: int, size: int) -> None:
    raises(TypeError, "Optimizer Linear", lambda: hvd.DistributedOptimizer(torch.nn.Linear(2, 2)))
    raises(TypeError, "Linear state_dict", lambda: hvd.broadcast_parameters(torch.nn.Linear(2, 2)))
    raises(TypeError, "process_set=1", lambda: hvd.allreduce(torch.ones(2), process_set=1))
    model = net()
    wrap = lambda **kw: hvd.DistributedOptimizer(sgd(model.parameters()), **kw)  # noqa: E731
    names = list(model.named_parameters())
    raises(ValueError, "names parameters", lambda: wrap(named_parameters=names[1:]))
    raises(ValueError, "twice", lambda: wrap(named_parameters=[*names, names[0]]))
    raises(ValueError, "named_parameters", lambda: wrap(named_parameters=model.parameters()))
    raises(ValueError, "Max", lambda: wrap(op=hvd.Max))
    raises(ValueError, "Average", lambda: wrap(op=hvd.Sum, gradient_predivide_factor=2.0))
    raises(ValueError, "backward_passes_per_step=0", lambda: wrap(backward_passes_per_step=0))
    raises(ValueError, "bucket_bytes", lambda: wrap(bucket_bytes=0))
    if size > 1:
        first = wrap()
        raises(ValueError, "another", lambda: hvd.DistributedOptimizer(sgd(model.head.parameters())))
        second = wrap()
        raises(RuntimeError, "taken", first.step)
        cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
        second.step()


class Words(nn.Module):
    def __init__(self, sparse: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 3, sparse=sparse)
        self.out = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.words(x).mean(1)).square().sum(1).mean()


def case_sparse_gradients_are_gathered_or_made_dense(rank: int, size: int) -> None:
    words = torch.randint(0, 50, (3, ROWS, 4), generator=torch.Generator().manual_seed(5))
    for dense, factor in ((False, 1.0), (True, 1.0), (False, 2.0)):
        model = net(make=Words)
        alone = copy.deepcopy(model)
        plain = torch.optim.SGD(alone.parameters(), lr=0.5)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.5), sparse_as_dense=dense, gradient_predivide_factor=factor
        )
        for step in range(3):
            plain.zero_grad()
            optimizer.zero_grad()
            alone(words[step]).backward()
            model(mine(words[step], rank, size)).backward()
            optimizer.synchronize()
            assert model.words.weight.grad.is_sparse == (not dense or size == 1)
            plain.step()
            optimizer.step()
            close(model, alone, DOUBLE)
        same_everywhere(model.parameters())


def case_sparse_gradients_may_be_missing_on_some_ranks(rank: int, size: int) -> None:
    model = net(make=Words)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5))
    for step in range(3):
        optimizer.zero_grad()
        used = step % size
        loss = model.out.bias.sum()
        if rank == used:
            loss = loss + model(torch.tensor([[step, 9]]))
        loss.backward()
        optimizer.synchronize()
        rows = model.words.weight.grad.coalesce().indices()[0].tolist()
        assert rows == [step, 9], rows
        optimizer.step()
    same_everywhere(model.parameters())


def case_mixed_precision_recipes_train_and_skip_alike(rank: int, size: int) -> None:
    x, y = batch(0, torch.float32)
    x, y = mine(x, rank, size), mine(y, rank, size)
    for recipe in ("plain", "unscale", "synchronize"):
        model = net(torch.float32)
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(4):
            before = [p.detach().clone() for p in model.parameters()]
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = cross_entropy(model(x), y)
            poisoned = step == 2 and rank == size - 1
            (scaler.scale(loss) * (float("inf") if poisoned else 1)).backward()
            if recipe != "plain":
                optimizer.synchronize()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if recipe == "synchronize":
                with optimizer.skip_synchronize():
                    scaler.step(optimizer)
            else:
                scaler.step(optimizer)
            scaler.update()
            moved = any(not torch.equal(a, b) for a, b in zip(before, model.parameters()))
            assert moved == (step != 2), (recipe, step)
            same_everywhere(model.parameters())
        assert scaler.get_scale() == 512.0


def case_models_may_change_type_and_grow_after_wrapping(rank: int, size: int) -> None:
    model = net(torch.float32)
    optimizer = hvd.DistributedOptimizer(sgd(model.conv.parameters()))
    optimizer.add_param_group({"params": list(model.branches.parameters()), "lr": 0.01})
    alone = copy.deepcopy(model)
    plain = sgd(alone.conv.parameters())
    plain.add_param_group({"params": list(alone.branches.parameters()), "lr": 0.01})
    for step in range(6):
        if step == 2:
            for m, o in ((model, optimizer), (alone, plain)):
                m.double()
                o.state.clear()
        if step == 4:
            for m, o in ((model, optimizer), (alone, plain)):
                o.add_param_group({"params": list(m.head.parameters()), "lr": 0.02})
                m.to(memory_format=torch.channels_last)
                m.share_memory()
        dtype = torch.float32 if step < 2 else torch.float64
        x, y = batch(step, dtype)
        plain.zero_grad(set_to_none=step != 3)
        optimizer.zero_grad(set_to_none=step != 3)
        cross_entropy(alone(x), y).backward()
        cross_entropy(model(mine(x, rank, size)), mine(y, rank, size)).backward()
        if step < 4:
            model.head.zero_grad()
            alone.head.zero_grad()
        plain.step()
        optimizer.step()
    same_everywhere(model.parameters())
    close(model, alone, SINGLE)


def case_gradients_may_be_moved_behind_our_back(rank: int, size: int) -> None:
    model = net()
    alone = copy.deepcopy(model)
    optimizer, plain = hvd.DistributedOptimizer(sgd(model.parameters())), sgd(alone.parameters())
    for step in range(6):
        x, y = batch(step)
        for m, o, a, b in ((model, optimizer, mine(x, rank, size), mine(y, rank, size)), (alone, plain, x, y)):
            o.zero_grad(set_to_none=step % 2 == 0)
            cross_entropy(m(a), b).backward()
            o.step()
            if step == 2:
                m.share_memory()
            if step in (3, 4):
                m._apply(lambda t: t.clone())
    close(model, alone, DOUBLE)
    same_everywhere(model.parameters())


def case_unfrozen_tied_and_complex_parameters_are_reduced(rank: int, size: int) -> None:
    frozen = nn.Linear(3, 3, dtype=torch.float64).requires_grad_(False)
    with torch.no_grad():
        frozen.weight.fill_(1)
    spin = nn.Parameter(torch.ones(3, dtype=torch.complex128))
    half = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    params = [*frozen.parameters(), spin, half]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0))
    for step in range(4):
        if step == 2:
            frozen.weight.requires_grad_(True)
        optimizer.zero_grad()
        x = torch.full((1, 3), float(rank), dtype=torch.float64)
        loss = frozen(x).sum() + frozen(x).sum() + (spin * (1 + 1j) * rank).real.sum() + (half * rank).double().sum()
        loss.backward()
        optimizer.synchronize()
        mean = sum(range(size)) / size
        assert torch.allclose(spin.grad, torch.full((3,), complex(mean, -mean), dtype=torch.complex128))
        assert torch.allclose(half.grad.float(), torch.full((3,), mean), rtol=0.02)
        if step >= 2:
            assert torch.allclose(frozen.weight.grad, torch.full((3, 3), 2 * mean, dtype=torch.float64))
        optimizer.step()
    same_everywhere([*frozen.parameters(), spin, half])


def case_different_models_are_named_on_every_rank(rank: int, size: int) -> None:
    if size == 1:
        return
    layer = nn.Linear(4, 2) if rank else nn.Linear(2, 4)  # as many elements, other shapes
    optimizer = hvd.DistributedOptimizer(sgd([layer.weight]), [("fc.weight", layer.weight), ("b", layer.bias)])
    layer(torch.ones(1, layer.in_features)).sum().backward()
    raises(hvd.Mismatch, "fc.weight (4, 2) (2, 4) rank", optimizer.step)
    layer.weight.data = torch.ones(2, 2)
    layer.weight.grad = None
    optimizer.zero_grad()
    (layer.weight * (rank + 1)).sum().backward()
    optimizer.step()
    same_everywhere([layer.weight])


def case_an_error_in_backward_leaves_a_usable_optimizer(rank: int, size: int) -> None:
    model = net()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), bucket_bytes=1)

    def explode(grad: torch.Tensor) -> None:
        raise KeyError("in the user's hook")

    x, y = batch(0)
    handle = model.conv.weight.register_hook(explode)
    raises(KeyError, "user", cross_entropy(model(x), y).backward)
    handle.remove()
    optimizer.synchronize()
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()
    same_everywhere(model.parameters())


def case_a_process_set_trains_by_itself(rank: int, size: int) -> None:
    if size < 3:
        return
    pair = hvd.add_process_set([1, 2])
    model = net()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), process_set=pair)
    x, y = batch(rank)
    for _ in range(3):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    total = hvd.allgather(torch.cat([p.detach().flatten() for p in model.parameters()]).unsqueeze(0))
    assert torch.equal(total[1], total[2]) and not torch.equal(total[0], total[1])
    hvd.remove_process_set(pair)


def case_the_first_ranks_order_becomes_everybodys(rank: int, size: int) -> None:
    if size == 1:
        return
    model = net(make=Choosing)
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), bucket_bytes=1)
    order = [2, 0, 3, 1] if rank == 0 else [0, 1, 2, 3]
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(4, dtype=torch.float64), order).backward()
        optimizer.step()
    starts = [[p.grad.data_ptr() for p in layer.parameters()] for layer in model.layers]
    numbers = [b.slots[0].name for b in optimizer._reducer._buckets]
    assert len(numbers) == len({s for pair in starts for s in pair}) == 8
    assert hvd.broadcast_object(numbers, 0) == numbers
    assert {int(n.split()[-1]) // 2 for n in numbers[:2]} == {1}, numbers  # the layer used last on rank 0


def case_gradients_outlive_the_job_and_the_next_job_works(rank: int, size: int) -> None:
    model = net()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
    x, y = batch(0)
    for _ in range(2):
        optimizer.zero_grad()
        cross_entropy(model(mine(x, rank, size)), mine(y, rank, size)).backward()
        optimizer.step()
        grads = [p.grad.clone() for p in model.parameters()]
        hvd.shutdown()
        assert all(torch.equal(g, p.grad) for g, p in zip(grads, model.parameters()))
        hvd.init()
    same_everywhere(model.parameters())


if __name__ == "__main__":
    run(dict(globals()))
