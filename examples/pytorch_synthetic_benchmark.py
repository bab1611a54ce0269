"""Images per second on random images: what the communication costs, without any data loading.

lwccrun -np 2 examples/pytorch_synthetic_benchmark.py
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lwcc_torch as lwcc


class Block(nn.Module):
    """Two convolutions around which the input passes by."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer))
        self.around = nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(self.first(x)) + self.around(x))


def network(width: int, depth: int) -> nn.Module:
    """Return a residual network for 32x32 images."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1)]
    channels = width
    for stage in range(3):
        for i in range(depth):
            outer = width << stage
            layers.append(Block(channels, outer, 2 if stage and i == 0 else 1))
            channels = outer
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def perceptron() -> nn.Module:
    """Return 25 million parameters in few layers: much to communicate for what there is to compute."""
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(3072, 2048), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Linear(2048, 2048), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(2048, 1000))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("resnet", "mlp"), default="resnet", help="default %(default)s")
    parser.add_argument("--width", type=int, default=32, help="channels of the first stage (default %(default)s)")
    parser.add_argument("--depth", type=int, default=2, help="blocks of each stage (default %(default)s)")
    parser.add_argument("--batch-size", type=int, default=8, help="images of each rank (default %(default)s)")
    parser.add_argument("--num-warmup-batches", type=int, default=5, help="default %(default)s")
    parser.add_argument("--num-batches-per-iter", type=int, default=5, help="default %(default)s")
    parser.add_argument("--num-iters", type=int, default=8, help="default %(default)s")
    parser.add_argument("--fp16-allreduce", action="store_true", help="compress gradients to 16 bits on the wire")
    args = parser.parse_args()

    lwcc.init()
    rank, size = lwcc.rank(), lwcc.size()
    torch.manual_seed(rank)
    model = network(args.width, args.depth) if args.model == "resnet" else perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * size)
    compression = lwcc.Compression.fp16 if args.fp16_allreduce else lwcc.Compression.none
    optimizer = lwcc.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)
    lwcc.broadcast_parameters(model.state_dict(), root_rank=0)
    lwcc.broadcast_optimizer_state(optimizer, root_rank=0)
    x, y = torch.randn(args.batch_size, 3, 32, 32), torch.randint(0, 1000, (args.batch_size,))

    def batches(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()

    parameters = sum(p.numel() for p in model.parameters())
    if rank == 0:
        print(f"{parameters} parameters, batch size {args.batch_size} on each of {size} ranks; target: equal replicas")
    batches(args.num_warmup_batches)
    speeds = []
    waited, began = lwcc.stats()["waited_ns"], time.perf_counter()
    for i in range(args.num_iters):
        start = time.perf_counter()
        batches(args.num_batches_per_iter)
        speeds.append(args.batch_size * args.num_batches_per_iter / (time.perf_counter() - start))
        if rank == 0:
            print(f"Iter #{i}: {speeds[-1]:.1f} img/sec per rank", flush=True)
    share = (lwcc.stats()["waited_ns"] - waited) / 1e9 / (time.perf_counter() - began)

    sums = lwcc.allgather(torch.stack([p.detach().double().sum() for p in model.parameters()]).unsqueeze(0))
    equal = bool((sums == sums[0]).all())
    if rank == 0:
        mean, spread = statistics.fmean(speeds), 1.96 * statistics.pstdev(speeds)
        print(f"Img/sec per rank: {mean:.1f} +-{spread:.1f}")
        print(f"Total img/sec on {size} ranks: {size * mean:.1f} +-{size * spread:.1f}")
        print(f"{share:.1%} of the time in communication (rank 0); replicas equal: {'yes' if equal else 'NO'}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
