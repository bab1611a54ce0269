"""DistributedDataParallel over the backends lwcc and gloo, and lwcc's DistributedOptimizer, step by step in turn, in
the same processes.

    python benchmarks/bench_ddp.py --np 2
All train copies of one model on the same data. A step is forward, backward and optimizer; its time is the maximum over
ranks. Each round takes a few steps with each subject, and without any (alone), in changing order; a figure is the
median over rounds of a round's median, with the least and the most. The share is what communication adds to the step
alone, against what gloo adds in the same round. In the end the parameters are compared: over the ranks bit by bit,
with gloo's within rounding.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lwcc_torch.c10d

SUBJECTS = ("optimizer", "lwcc", "gloo", "alone")


class Case(NamedTuple):
    """A model and its batch for each rank."""

    title: str
    model: nn.Module
    x: torch.Tensor
    y: torch.Tensor


def mlp(batch: int) -> Case:
    """Return a perceptron of 25 million parameters."""
    layers = [part for _ in range(6) for part in (nn.Linear(2048, 2048), nn.ReLU())]
    return Case(f"MLP, batch {batch}", nn.Sequential(*layers), torch.randn(batch, 2048), torch.randn(batch, 2048))


def cnn(batch: int) -> Case:
    """Return a convolutional network of 2.6 million parameters, most of them in its last convolutions."""
    widths = [3, 32, 64, 128, 256, 512]
    parts: list[nn.Module] = []
    for a, b in zip(widths, widths[1:]):
        parts += [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]
    parts += [nn.Flatten(), nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 10)]
    return Case(f"CNN, batch {batch}", nn.Sequential(*parts), torch.randn(batch, 3, 32, 32), torch.randn(batch, 10))


def small(batch: int) -> Case:
    """Return the network of examples/pytorch_mnist.py, of 0.1 million parameters: one bucket."""
    parts = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10)]
    model = nn.Sequential(*parts, *head)
    return Case(f"small CNN, batch {batch}", model, torch.randn(batch, 1, 28, 28), torch.randn(batch, 10))


class Trainer:
    """One copy of a case's model: by our optimizer, over one backend, or alone."""

    def __init__(self, case: Case, subject: str) -> None:
        self.case = case
        self.model = copy.deepcopy(case.model)
        self.wrapped = self.model
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        if subject == "optimizer":
            named = self.model.named_parameters()
            self.optimizer = lwcc_torch.DistributedOptimizer(self.optimizer, named_parameters=named)
        elif subject != "alone":
            self.wrapped = DistributedDataParallel(self.model, process_group=dist.new_group(backend=subject))

    def step(self) -> None:
        """Train on the batch once."""
        self.optimizer.zero_grad()
        nn.functional.mse_loss(self.wrapped(self.case.x), self.case.y).backward()
        self.optimizer.step()


def timed(trainer: Trainer, steps: int) -> float:
    """Return the median of the steps' seconds, each the maximum over ranks."""
    took = torch.zeros(steps, dtype=torch.float64)
    for i in range(steps):
        dist.barrier()
        began = time.perf_counter()
        trainer.step()
        took[i] = time.perf_counter() - began
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return statistics.median(took.tolist())


def check(trainers: dict[str, Trainer]) -> str:
    """Compare the parameters over ranks and backends; return "" or what is wrong."""
    flat = {s: torch.cat([p.detach().reshape(-1) for p in t.model.parameters()]) for s, t in trainers.items()}
    for subject in SUBJECTS[:3]:
        first = flat[subject].clone()
        dist.broadcast(first, 0)
        if not torch.equal(first, flat[subject]):
            return f"{subject}: the ranks' parameters differ"
    for subject in SUBJECTS[:2]:
        if not torch.allclose(flat[subject], flat["gloo"], rtol=1e-4, atol=1e-6):
            return f"{subject} and gloo differ by up to {(flat[subject] - flat['gloo']).abs().max():.3g}"
    return ""


def orders() -> Iterator[list[str]]:
    """Yield the subjects in changing order, so that none always follows the same other."""
    names = list(SUBJECTS)
    while True:
        yield names
        names = [names[-1], *names[:-1]]


def spread(values: list[float], form: str = "{:.1f}") -> str:
    """Return "median (least-most)"."""
    low, middle, high = (form.format(v) for v in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({low}-{high})"


def measure(case: Case, rounds: int, steps: int) -> tuple[str, str]:
    """Return a row of the table, and what is wrong with the results."""
    trainers = {subject: Trainer(case, subject) for subject in SUBJECTS}
    found: dict[str, list[float]] = {subject: [] for subject in SUBJECTS}
    for trainer in trainers.values():
        timed(trainer, 3)
    for _, order in zip(range(rounds), orders()):
        for subject in order:
            found[subject].append(1e3 * timed(trainers[subject], steps))
    cells = [spread(found[subject]) for subject in SUBJECTS]
    for subject in SUBJECTS[:2]:
        rounds_of = zip(found[subject], found["gloo"], found["alone"])
        cells.append(spread([(mine - alone) / (gloo - alone) for mine, gloo, alone in rounds_of], "{:.2f}"))
    return f"| {case.title} | {' | '.join(cells)} |", check(trainers)


def rank_main(args: argparse.Namespace) -> int:
    """Measure, on one rank."""
    torch.set_num_threads(1)
    dist.init_process_group(lwcc_torch.c10d.NAME)
    wrong = 0
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, {args.rounds} rounds of {args.steps} steps; milliseconds a step")
        print("| | optimizer | DDP lwcc | DDP gloo | alone | share, optimizer | share, DDP lwcc |")
        print("|---|---|---|---|---|---|---|", flush=True)
    for name in args.cases.split(","):
        kind, batch = name.split(":")
        torch.manual_seed(args.seed)
        model = {"mlp": mlp, "cnn": cnn, "small": small}[kind](int(batch))
        torch.manual_seed(args.seed + dist.get_rank())
        row, trouble = measure(model._replace(x=torch.randn_like(model.x)), args.rounds, args.steps)
        wrong += bool(trouble)
        if dist.get_rank() == 0:
            print(row, f"WRONG: {trouble}" if trouble else "", flush=True)
    dist.destroy_process_group()
    return int(wrong > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--np", type=int, default=2, help="ranks (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="default %(default)s")
    parser.add_argument("--steps", type=int, default=5, help="of each subject in a round (default %(default)s)")
    parser.add_argument("--cases", default="mlp:16,mlp:64,cnn:16,small:32", help="model:batch (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    args = parser.parse_args()
    if "LWCC_RANK" in os.environ:
        return rank_main(args)
    command = [sys.executable, "-m", "lwcc.launcher", "--no-tag", "-np", str(args.np), *sys.argv]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
