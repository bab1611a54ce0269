"""A compiled model under a distributed optimizer."""

from __future__ import annotations

import torch
from casebook import run, same_everywhere
from torch import nn

import lwcc_torch as hvd


def case_a_compiled_model_trains_as_one_process_would(rank: int, size: int) -> None:
    model, alone = (nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)) for _ in range(2))
    alone.load_state_dict(model.state_dict())
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(compiled.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, compiled.named_parameters())
    plain = torch.optim.AdamW(alone.parameters(), lr=0.01)
    for _ in range(4):
        x = torch.randn(2 * size, 6)
        for m, o, part in ((compiled, optimizer, x[2 * rank :][:2]), (alone, plain, x)):
            o.zero_grad()
            m(part).square().mean().backward()
            o.step()
    same_everywhere(model.parameters())
    for p, q in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


if __name__ == "__main__":
    run(dict(globals()))
