"""`join`: ranks that run out of data at different times, with every collective and with optimizers."""

from __future__ import annotations

import copy

import torch
from casebook import raises, run, same_everywhere
from torch.nn.functional import cross_entropy
from training import DOUBLE, batch, close, net, sgd

import lwcc_torch as hvd


def case_join_before_anything_else(rank: int, size: int) -> None:
    if rank != 0:
        mine = torch.full((3,), float(rank))
        assert torch.equal(hvd.allreduce(mine), torch.full((3,), size / 2))
        assert hvd.allreduce(mine, op=hvd.Min).tolist() == [1.0] * 3
        assert hvd.allreduce(-mine, op=hvd.Max).tolist() == [-1.0] * 3
        assert hvd.allreduce(mine, op=hvd.Product)[0] == torch.arange(1.0, size).prod()
        assert hvd.allreduce(mine, op=hvd.Min, prescale_factor=-2.0)[0] == -2.0 * (size - 1)
    last = hvd.join()
    assert hvd.allgather_object(last) == [last] * size and (last != 0 or size == 1)


def case_every_type_has_its_neutral_elements(rank: int, size: int) -> None:
    if rank < size - 1:
        for dtype in (
            torch.float16,
            torch.bfloat16,
            torch.float32,
            torch.float64,
            torch.uint8,
            torch.int8,
            torch.int64,
        ):
            for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product):
                expected = {hvd.Sum: 2 * (size - 1), hvd.Product: 2 ** (size - 1)}.get(op, 2)
                got = hvd.allreduce(torch.full((5,), 2, dtype=dtype), op=op, name=f"{dtype}.{op}")
                assert got.tolist() == [expected] * 5, (dtype, op, got)
            if dtype.is_signed:
                assert hvd.allreduce(torch.full((), -3, dtype=dtype), op=hvd.Max, name=f"{dtype}.top") == -3
        assert hvd.allreduce(torch.tensor([True, False]), op=hvd.Min).tolist() == [True, False]
        assert hvd.allreduce(torch.tensor([True, False]), op=hvd.Max).tolist() == [True, False]
        packed = hvd.allreduce(torch.full((4,), 3.0), compression=hvd.Compression.fp16, name="packed")
        assert packed.tolist() == [3.0] * 4
        products = hvd.allreduce(torch.full((2,), 3.0), op=hvd.Product, prescale_factor=0.5, name="scaled")
        assert products.tolist() == [1.5 ** (size - 1)] * 2
    last = hvd.join()
    assert size == 1 or 0 <= last < size - 1


def case_every_collective_goes_on(rank: int, size: int) -> None:
    active = max(size - 1, 1)
    if rank < active:
        rows = torch.arange(rank + 1).repeat(2, 1).t()
        assert len(hvd.allgather(rows)) == active * (active + 1) // 2
        got, splits = hvd.alltoall(torch.arange(size), [1] * size)
        assert got.tolist() == [rank] * active and splits.tolist() == [1] * active + [0] * (size - active)
        assert hvd.alltoall(torch.arange(size), name="equal").tolist() == [rank] * active
        assert hvd.reducescatter(torch.ones(size, 2), op=hvd.Sum).tolist() == [[float(active)] * 2]
        assert hvd.reducescatter(torch.ones(size, 2)).tolist() == [[1.0] * 2]
        assert hvd.broadcast(torch.tensor([rank]), 0).item() == 0
        assert hvd.broadcast_object({"from": rank}, 0) == {"from": 0}
        assert hvd.allgather_object(rank) == list(range(active))
        many = hvd.grouped_allreduce([torch.ones(3), torch.ones(2)], op=hvd.Sum)
        assert [t[0].item() for t in many] == [active] * 2
        assert [len(t) for t in hvd.grouped_allgather([torch.ones(1), torch.ones(2)])] == [active, 2 * active]
        sparse = torch.sparse_coo_tensor([[0, 2]], [1.0, float(rank)], (4,), check_invariants=True)
        assert hvd.sparse_allreduce_async(sparse)().to_dense()[0] == 1.0
        hvd.barrier()
        if size > 1:
            raises(hvd.Mismatch, "root joined", lambda: hvd.broadcast(torch.ones(1), size - 1))
            raises(hvd.Mismatch, "process sets joined", lambda: hvd.add_process_set([0]))
        leaf = torch.full((2,), float(rank), requires_grad=True)
        hvd.allreduce(leaf, op=hvd.Sum).sum().backward()
        assert leaf.grad is not None and leaf.grad.tolist() == [active] * 2
    assert 0 <= hvd.join() < size


def case_sets_join_apart(rank: int, size: int) -> None:
    if size < 3:
        return
    few = hvd.add_process_set([0, size - 1])
    if rank in (0, size - 1):
        if rank:
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=few).item() == 1
        assert hvd.join(process_set=few) == size - 1
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=few).item() == 2
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size
    assert hvd.remove_process_set(few)


def case_uneven_epochs_train_as_one_process_would(rank: int, size: int) -> None:
    """Rank r has r + 1 batches in even epochs and size - r in odd ones; rank 0's first one comes after a join."""
    model = net()
    alone = copy.deepcopy(model)
    optimizer, plain = hvd.DistributedOptimizer(sgd(model.parameters())), sgd(alone.parameters())
    for epoch in range(3):
        counts = [(r + 1) if epoch % 2 else r for r in range(size)]
        for step in range(max(counts)):
            takes_part = [r for r in range(size) if counts[r] > step]
            parts = [batch(100 * epoch + 10 * step + r) for r in takes_part]
            plain.zero_grad()
            torch.stack([cross_entropy(alone(x), y) for x, y in parts]).mean().backward()
            plain.step()
            if rank in takes_part:
                x, y = parts[takes_part.index(rank)]
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
        last = hvd.join()
        assert counts[last] == max(counts) or not any(counts)
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)
        hvd.broadcast_optimizer_state(optimizer, root_rank=last)
        same_everywhere(model.parameters())
        close(model, alone, DOUBLE)


if __name__ == "__main__":
    run(globals())
