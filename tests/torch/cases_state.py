"""Bringing all ranks to the state of one."""

from __future__ import annotations

import copy
from typing import Any

import torch
from casebook import raises, run, same_everywhere
from torch import nn

import lwcc_torch as hvd


def model_of(seed: int, norm: bool = True) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4) if norm else nn.Identity(), nn.Flatten(), nn.Linear(64, 2)
    )


def train(model: nn.Module, optimizer: Any, steps: int) -> None:
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(4, 3, 6, 6)).square().mean().backward()
        optimizer.step()


def flat_state(optimizer: Any) -> list[torch.Tensor]:
    state = optimizer.state_dict()["state"]
    return [v for i in sorted(state) for k, v in sorted(state[i].items()) if isinstance(v, torch.Tensor)]


def case_parameters_come_from_any_root_in_any_form(rank: int, size: int) -> None:
    forms = (
        lambda m: m.state_dict(),
        lambda m: m.named_parameters(),
        lambda m: list(m.named_parameters()),
        lambda m: m.parameters(),
        lambda m: (pair for pair in m.named_parameters()),
        lambda m: dict(m.named_parameters()),
    )
    for i, form in enumerate(forms):
        root = i % size
        model, expected = model_of(rank), model_of(root)
        if i % 2:
            model = model.to(memory_format=torch.channels_last)
        hvd.broadcast_parameters(form(model), root_rank=root)
        for p, q in zip(model.parameters(), expected.parameters()):
            assert torch.equal(p, q)
        if i % 2:
            assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    mask = torch.full((1, 3, 1), float(rank)).expand(4, 3, 5)
    hvd.broadcast_parameters({"mask": mask}, size - 1)
    assert mask.shape == (4, 3, 5) and bool((mask == size - 1).all())
    raises(ValueError, "broadcast_object", lambda: hvd.broadcast_parameters({"extra": 3}, 0))
    raises(ValueError, "twice", lambda: hvd.broadcast_parameters([("a", torch.ones(1)), ("a", torch.ones(1))], 0))


def case_a_resumed_adamw_is_equal_everywhere_and_no_parameter_moves(rank: int, size: int) -> None:
    model = model_of(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    if rank == 0:
        train(model, optimizer, 3)  # only rank 0 has a checkpoint to resume from
        optimizer.param_groups[0]["lr"] = 0.03125
    hvd.broadcast_parameters(model.state_dict(), 0)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    saved = copy.deepcopy(optimizer.state_dict()) if rank == 0 else None
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters())), "a parameter changed"
    same_everywhere(before)
    assert optimizer.param_groups[0]["lr"] == 0.03125 and len(flat_state(optimizer)) == 18
    same_everywhere(flat_state(optimizer))
    if saved is not None:
        assert str(saved) == str(optimizer.state_dict()), "the root's own state changed"
    train(model, optimizer, 2)
    same_everywhere([*model.parameters(), *flat_state(optimizer)])


def case_state_that_the_root_lacks_is_dropped(rank: int, size: int) -> None:
    model = model_of(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (rank + 1), momentum=0.9)
    if rank != 0:
        train(model, optimizer, 1)
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert optimizer.param_groups[0]["lr"] == 0.1 and not flat_state(optimizer)


def case_state_of_every_shape_arrives(rank: int, size: int) -> None:
    root = size - 1
    for make in (
        lambda p: torch.optim.LBFGS(p, max_iter=3),
        lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01 * (rank + 1)), amsgrad=True),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
        lambda p: torch.optim.Rprop(p),
    ):
        model = model_of(5, norm=False)
        optimizer = make(model.parameters())
        if not isinstance(optimizer, torch.optim.LBFGS):  # which cannot do it
            model.to(memory_format=torch.channels_last)
        if rank == root:

            def closure(m: nn.Module = model, o: Any = optimizer) -> torch.Tensor:
                o.zero_grad()
                loss = m(torch.ones(2, 3, 6, 6)).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)
        before = [p.detach().clone() for p in model.parameters()]
        hvd.broadcast_optimizer_state(optimizer, root, model=model)
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
        seen = hvd.allgather_object(str(optimizer.state_dict()))
        assert len(set(seen)) == 1 and "tensor" in seen[0]


def case_optimizers_that_differ_are_refused_on_every_rank(rank: int, size: int) -> None:
    root = size - 1
    extra = int(rank == root)
    for make, told in (
        (lambda: torch.optim.Adam([torch.ones(1, requires_grad=True) for _ in range(1 + extra)]), ("of 1", "of 2")),
        (
            lambda: (torch.optim.SGD, torch.optim.Adam)[extra]([torch.ones(1, requires_grad=True)], lr=0.1),
            ("SGD", "Adam"),
        ),
    ):
        different = make()
        parameters = [p for group in different.param_groups for p in group["params"]]
        sum(parameters).backward()
        different.step()  # also where the root has a state to send
        if size > 1:
            raises(hvd.Mismatch, told[0], lambda o=different: hvd.broadcast_optimizer_state(o, root))
            raises(hvd.Mismatch, told[1], lambda o=different: hvd.broadcast_optimizer_state(o, root))
    raises(TypeError, "not dict", lambda: hvd.broadcast_optimizer_state(different.state_dict(), root))
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == size


def case_objects_travel(rank: int, size: int) -> None:
    for root in range(size):
        assert hvd.broadcast_object({"epoch": rank, "x": [1, (2, 3)]}, root) == {"epoch": root, "x": [1, (2, 3)]}
    assert hvd.broadcast_object("x" * 100_000 if rank == 0 else None, name="long") == "x" * 100_000
    assert hvd.allgather_object(["r"] * rank) == [["r"] * r for r in range(size)]


def case_a_checkpoint_goes_on_as_if_never_stopped(rank: int, size: int) -> None:
    straight, resumed = model_of(2), model_of(2)
    optimizers = [hvd.DistributedOptimizer(torch.optim.Adam(m.parameters(), lr=0.02)) for m in (straight, resumed)]
    train(straight, optimizers[0], 4)
    train(resumed, optimizers[1], 2)
    checkpoint = copy.deepcopy((resumed.state_dict(), optimizers[1].state_dict()))
    again = model_of(9)
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(again.parameters(), lr=9.0))
    if rank == 0:
        again.load_state_dict(checkpoint[0])
        optimizer.load_state_dict(checkpoint[1])
    hvd.broadcast_parameters(again.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    for step in range(2, 4):
        torch.manual_seed(step)
        optimizer.zero_grad()
        again(torch.randn(4, 3, 6, 6)).square().mean().backward()
        optimizer.step()
    for p, q in zip(straight.parameters(), again.parameters()):
        assert torch.equal(p, q)


if __name__ == "__main__":
    run(dict(globals()))
