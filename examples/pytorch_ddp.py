"""The digits of pytorch_mnist.py with torch's own DistributedDataParallel, over the backend lwcc.

lwccrun -np 2 examples/pytorch_ddp.py
torchrun --nproc-per-node 2 examples/pytorch_ddp.py
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
import torch.distributed as dist
from pytorch_mnist import TARGET, TRAIN, load, network
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def correct(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the share of right answers; each rank looks at its part of the images."""
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    with torch.no_grad():
        hits = (model(x[mine]).argmax(1) == y[mine]).sum()
    dist.all_reduce(hits)
    return hits.item() / len(y)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8, help="passes over the data (default %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="global batch, over all ranks (default %(default)s)")
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate of Adam (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    parser.add_argument("--backend", default="lwcc", help="lwcc or gloo (default %(default)s)")
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group(args.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    x, y = load()
    model = DistributedDataParallel(network(), gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    began, accuracy = time.perf_counter(), 0.0
    for epoch in range(args.epochs):
        order = torch.randperm(TRAIN, generator=torch.Generator().manual_seed(epoch))
        for part in order.split(args.batch):
            mine = part[rank::size]
            optimizer.zero_grad()
            cross_entropy(model(x[mine]), y[mine]).backward()
            optimizer.step()
        accuracy = correct(model.module, x[TRAIN:], y[TRAIN:])
        if rank == 0:
            print(f"epoch {epoch + 1}: accuracy {accuracy:.4f}", flush=True)
    if rank == 0:
        seconds = time.perf_counter() - began
        print(f"{args.backend}, {size} ranks: {args.epochs * TRAIN / seconds:.0f} samples/s, accuracy {accuracy:.4f}")
    dist.destroy_process_group()
    return int(accuracy < TARGET)


if __name__ == "__main__":
    sys.exit(main())
