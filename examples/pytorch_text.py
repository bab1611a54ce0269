"""A byte-level language model (GRU) on the help topics that Python itself ships.

lwccrun -np 2 examples/pytorch_text.py
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lwcc_torch as lwcc

TARGET = 2.15  # bits per byte of unseen text, after 400 steps


class Model(nn.Module):
    """Bytes in, scores of the next byte out: [batch, time] to [batch, time, 256]; 214,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 64)
        self.gru = nn.GRU(64, 192, batch_first=True)
        self.out = nn.Linear(192, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.gru(self.embed(x))[0])


def bits(model: nn.Module, text: torch.Tensor, length: int) -> float:
    """Return bits per byte on `text`; each rank reads its part."""
    rows = text[: (len(text) - 1) // length * length].view(-1, length)[lwcc.rank() :: lwcc.size()]
    with torch.no_grad():
        loss = cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten(), reduction="sum")
    both = torch.tensor([loss.item(), rows[:, 1:].numel()], dtype=torch.float64)
    total, count = lwcc.allreduce(both, op=lwcc.Sum, name="bits").tolist()
    return total / count / math.log(2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="default %(default)s")
    parser.add_argument("--batch", type=int, default=64, help="sequences, over all ranks (default %(default)s)")
    parser.add_argument("--length", type=int, default=64, help="bytes of a sequence (default %(default)s)")
    parser.add_argument("--lr", type=float, default=1e-2, help="learning rate of Adam (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    args = parser.parse_args()

    lwcc.init()
    rank, size = lwcc.rank(), lwcc.size()
    data = torch.frombuffer(bytearray("\n".join(topics[k] for k in sorted(topics)).encode()), dtype=torch.uint8).long()
    train, test = data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]
    torch.manual_seed(args.seed)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    optimizer = lwcc.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    lwcc.broadcast_parameters(model.state_dict(), root_rank=0)
    if rank == 0:
        print(f"{len(data)} bytes of text, {size} ranks, target <= {TARGET} bits per byte")

    shuffle = torch.Generator().manual_seed(args.seed)
    began, waited = time.perf_counter(), lwcc.stats()["waited_ns"]
    for step in range(args.steps):
        starts = torch.randint(len(train) - args.length - 1, (args.batch,), generator=shuffle)[rank::size]
        rows = torch.stack([train[i : i + args.length + 1] for i in starts.tolist()])
        optimizer.zero_grad()
        total = cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten(), reduction="sum")
        loss = total * size / (args.batch * args.length)  # the ranks' average is the batch's mean, however it divides
        loss.backward()
        optimizer.synchronize()  # clip the gradients of all ranks, not this rank's own
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        schedule.step()
        if rank == 0 and (step + 1) % 50 == 0:
            print(f"step {step + 1}/{args.steps}  {loss.item() / math.log(2):.3f} bits per byte", flush=True)
    seconds = time.perf_counter() - began
    share = (lwcc.stats()["waited_ns"] - waited) / 1e9 / seconds
    reached = bits(model, test, args.length + 1)
    if rank == 0:
        verdict = "reached" if reached <= TARGET else "MISSED"
        print(f"{reached:.3f} bits per byte of unseen text; target <= {TARGET}: {verdict}")
        speed = args.steps * args.batch * args.length / seconds
        print(
            f"{speed:.0f} bytes/s on {size} ranks; {share:.1%} of the time in communication (rank 0); {seconds:.1f} s"
        )
    return 0 if reached <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
