"""Two seconds of training: an MLP on scikit-learn's 8x8 digits.

lwccrun -np 2 examples/pytorch_digits.py
"""

from __future__ import annotations

import argparse
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import lwcc_torch as lwcc

TARGET = 0.965


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20, help="passes over the data (default %(default)s)")
    parser.add_argument("--batch", type=int, default=48, help="global batch, over all ranks (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    args = parser.parse_args()

    lwcc.init()
    rank, size = lwcc.rank(), lwcc.size()
    torch.manual_seed(args.seed)
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(3))
    x = torch.tensor(digits.data, dtype=torch.float32)[order] / 16
    y = torch.tensor(digits.target)[order]
    train, test = slice(0, 1437), slice(1437, None)

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    optimizer = lwcc.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    lwcc.broadcast_parameters(model.state_dict(), root_rank=0)

    loss = torch.zeros(())
    for epoch in range(args.epochs):
        for batch in torch.randperm(1437).split(args.batch):  # the same on every rank, which takes every size-th row
            part = batch[rank::size]
            optimizer.zero_grad()
            # the last batch may not divide: weigh each rank's mean so that their average is the batch's mean
            loss = cross_entropy(model(x[train][part]), y[train][part], reduction="sum") * size / len(batch)
            loss.backward()
            optimizer.step()
        if rank == 0 and (epoch + 1) % 5 == 0:
            print(f"epoch {epoch + 1:2d}  loss {loss.item():.4f}", flush=True)

    with torch.no_grad():
        accuracy = (model(x[test]).argmax(1) == y[test]).double().mean().item()
    if rank == 0:
        verdict = "reached" if accuracy >= TARGET else "MISSED"
        print(f"accuracy {accuracy:.4f} on {size} ranks; target >= {TARGET}: {verdict}")
    return 0 if accuracy >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
