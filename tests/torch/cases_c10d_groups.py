"""Several process groups at once, by four ranks: overlapping, equal, two-dimensional meshes, made by members alone."""

from __future__ import annotations

import copy
import threading
from typing import Any

import torch
import torch.distributed as dist
from casebook import raises, run
from cases_c10d_training import alone, network, train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel as DDP

PAIRS = [(a, b) for a in range(4) for b in range(a + 1, 4)]


def summed(group: Any, value: float, length: int = 3) -> list[float]:
    x = torch.full((length,), value)
    dist.all_reduce(x, group=group)
    return x.tolist()


def case_overlapping_groups_side_by_side(rank: int, size: int) -> None:
    groups = {pair: dist.new_group(list(pair)) for pair in PAIRS}
    mine = [pair for pair in PAIRS if rank in pair]
    for turn in range(20):
        # each rank in its own order: all are under way at once
        order = mine[turn % 3 :] + mine[: turn % 3] if rank % 2 else mine[::-1]
        tensors = {pair: torch.full((1000,), float(rank + turn)) for pair in order}
        works = [dist.all_reduce(tensors[pair], group=groups[pair], async_op=True) for pair in order]
        everybody = dist.all_reduce(torch.ones(5), async_op=True)
        for work in works:
            work.wait()
        everybody.wait()
        for pair, x in tensors.items():
            assert torch.equal(x, torch.full((1000,), float(sum(pair) + 2 * turn))), (turn, pair)
    for group in groups.values():
        dist.destroy_process_group(group)


def case_groups_of_the_same_ranks_do_not_meet(rank: int, size: int) -> None:
    first, second = dist.new_group([0, 2, 3]), dist.new_group([0, 2, 3])
    if rank != 1:
        order = (first, second) if rank else (second, first)
        tensors = {group: torch.full((2,), 10.0 if group is first else 1.0) for group in order}
        works = [dist.all_reduce(tensors[group], group=group, async_op=True) for group in order]
        for work in works:
            work.wait()
        assert tensors[first].tolist() == [30.0] * 2 and tensors[second].tolist() == [3.0] * 2
    again = dist.new_group([0, 2, 3])
    if rank != 1:
        dist.destroy_process_group(first)
        assert summed(second, 1.0) == [3.0] * 3 == summed(again, 1.0)
        dist.destroy_process_group(second)
        dist.destroy_process_group(again)


def case_groups_made_by_their_members_alone(rank: int, size: int) -> None:
    # torch makes the names of such groups from the ranks and from how many groups a process is in
    half = [0, 1] if rank < 2 else [2, 3]
    group = dist.new_group(half, use_local_synchronization=True)
    assert summed(group, float(rank)) == [float(sum(half))] * 3
    single = dist.new_group([rank], use_local_synchronization=True)
    assert summed(single, 5.0) == [5.0] * 3
    mine, everybodys = dist.new_subgroups(2)
    assert len(everybodys) == 2 and summed(mine, float(rank)) == [float(sum(half))] * 3


def case_a_blocked_group_holds_no_other_back(rank: int, size: int) -> None:
    left, right = dist.new_group([0, 1]), dist.new_group([0, 2])
    waiting = dist.all_reduce(torch.ones(2), group=left, async_op=True) if rank == 0 else None
    future = waiting.get_future() if waiting is not None else None
    if rank in (0, 2):
        work = dist.all_reduce(torch.ones(2), group=right, async_op=True)
        work.get_future().wait()
        assert future is None or not future.done()
    dist.barrier()
    if rank == 1:
        dist.all_reduce(torch.ones(2), group=left)
    if future is not None:
        assert future.wait()[0].tolist() == [2.0, 2.0]


def case_groups_from_several_threads(rank: int, size: int) -> None:
    groups = [dist.new_group([0, 1, 2, 3]) for _ in range(3)]
    found: dict[int, Any] = {}

    def work(i: int) -> None:
        found[i] = [summed(groups[i], float(rank + i + k)) for k in range(30)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for i in range(3):
        assert found[i] == [[6.0 + 4 * (i + k)] * 3 for k in range(30)]


def case_a_mesh_of_two_dimensions(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    assert summed(mesh.get_group("inner"), float(rank)) == [1.0 if rank < 2 else 5.0] * 3
    assert summed(mesh.get_group("outer"), float(rank)) == [2.0 if rank % 2 == 0 else 4.0] * 3
    a = torch.randn(6, 8)
    for placements in ([Shard(0), Shard(1)], [Shard(1), Replicate()], [Shard(0), Shard(0)]):
        assert torch.equal(distribute_tensor(a, mesh, placements).full_tensor(), a)
    left, right = (
        distribute_tensor(a, mesh, [Shard(0), Replicate()]),
        distribute_tensor(a.t(), mesh, [Replicate(), Shard(1)]),
    )
    torch.testing.assert_close((left @ right).full_tensor(), a @ a.t())


def case_hybrid_sharding(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = network()
    expected = alone(model, size)
    sharded = copy.deepcopy(model)
    for layer in sharded:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    train(sharded, torch.optim.Adam(sharded.parameters(), lr=0.01), rank, size)
    for p, q in zip(sharded.parameters(), expected.parameters()):
        torch.testing.assert_close(p.full_tensor().detach(), q.detach(), rtol=1e-4, atol=1e-5)


def case_ddp_in_a_subgroup(rank: int, size: int) -> None:
    group = dist.new_group([1, 3])
    if rank in (1, 3):
        model = nn.Linear(2, 1, bias=False)
        wrapped = DDP(model, process_group=group)
        wrapped(torch.full((1, 2), float(rank))).sum().backward()
        assert model.weight.grad.tolist() == [[2.0, 2.0]]


def case_a_group_beside_gloo(rank: int, size: int) -> None:
    other = dist.new_group(backend="gloo")
    assert summed(other, 1.0) == [4.0] * 3 == summed(dist.group.WORLD, 1.0)


def case_a_mismatch_in_a_subgroup_is_told_to_its_members_alone(rank: int, size: int) -> None:
    group = dist.new_group([1, 2, 3])
    if rank:
        raises(RuntimeError, "disagree float32[4] float32[5] rank", lambda: summed(group, 1.0, 5 if rank == 3 else 4))
        assert summed(group, 1.0) == [3.0] * 3
    dist.barrier()


def case_a_destroyed_group_is_of_no_use(rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)))
    assert summed(group, 1.0) == [float(size)] * 3
    dist.destroy_process_group(group)
    raises(RuntimeError, "destroyed", lambda: group.allreduce([torch.ones(1)]))
    dist.barrier()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("lwcc")
    run(dict(globals()))
    dist.destroy_process_group()
