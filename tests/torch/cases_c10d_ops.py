"""torch.distributed's collectives over the backend lwcc: every kind, type and form, in the world and in a subgroup."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from casebook import raises, run

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
TYPES = [*FLOATS, *INTEGERS, torch.bool, torch.complex64]
SHAPES: list[tuple[int, ...]] = [(5,), (3, 4), (0,), ()]
_groups: list[Any] = []


def groups() -> Iterator[tuple[Any, list[int]]]:
    """Yield (group, its global ranks) of the world, and of a subgroup that this rank is in."""
    everybody = list(range(dist.get_world_size()))
    some = everybody[1:] or everybody
    if not _groups:
        _groups.append(dist.new_group(some))
    yield dist.group.WORLD, everybody
    if dist.get_rank() in some:
        yield _groups[0], some


def data(rank: int, shape: tuple[int, ...], kind: torch.dtype, salt: int = 0) -> torch.Tensor:
    """Return what a rank contributes: small whole numbers, so that sums are exact in every type."""
    generator = torch.Generator().manual_seed(1000 * salt + rank)
    numbers = torch.randint(0, 3, shape, generator=generator)
    return numbers.to(kind) * (1 + 1j) if kind.is_complex else numbers.to(kind)


def settle(work: Any, is_async: bool) -> None:
    """Wait for an asynchronous call, in one of three ways."""
    if not is_async:
        assert work is None
        return
    if id(work) % 2:
        work.get_future().wait()
    else:
        assert work.wait()
    assert work.is_completed()
    work.wait()


def case_all_reduce(rank: int, size: int) -> None:
    for group, ranks in groups():
        for kind in TYPES:
            for shape in SHAPES:
                for is_async in (False, True):
                    x = data(rank, shape, kind)
                    settle(dist.all_reduce(x, group=group, async_op=is_async), is_async)
                    everybodys = torch.stack([data(r, shape, kind) for r in ranks])
                    expected = everybodys.any(0) if kind == torch.bool else everybodys.sum(0).to(kind)
                    assert torch.equal(x, expected), (kind, shape, x, expected)


def case_all_reduce_with_every_operation(rank: int, size: int) -> None:
    for group, ranks in groups():
        for kind in [*FLOATS, *INTEGERS]:
            terms = torch.stack([data(r, (7,), kind) + 1 for r in ranks])
            expected = {
                dist.ReduceOp.MIN: terms.amin(0),
                dist.ReduceOp.MAX: terms.amax(0),
                dist.ReduceOp.PRODUCT: terms.double().prod(0).to(kind),
            }
            for op, wanted in expected.items():
                x = terms[ranks.index(rank)].clone()
                dist.all_reduce(x, op, group)
                assert torch.equal(x, wanted), (kind, op, x, wanted)
        x = torch.tensor([1.0, 2.0]) * (rank + 1)
        dist.all_reduce(x, dist.ReduceOp.AVG, group)
        torch.testing.assert_close(x, torch.tensor([1.0, 2.0]) * (sum(ranks) / len(ranks) + 1))
        x = torch.full((3,), float(rank))
        dist.all_reduce(x, torch.distributed._make_nccl_premul_sum(2.0), group)
        assert x.tolist() == [2.0 * sum(ranks)] * 3
        x = torch.tensor([1 << r for r in (rank, 8)])
        dist.all_reduce(x, dist.ReduceOp.BOR, group)  # by gloo
        assert x.tolist() == [sum(1 << r for r in ranks), 256]


def case_tensors_that_are_not_contiguous(rank: int, size: int) -> None:
    x = data(rank, (4, 6), torch.float32).t()
    dist.all_reduce(x)
    assert torch.equal(x, sum(data(r, (4, 6), torch.float32) for r in range(size)).t())
    image = data(rank, (2, 3, 4, 5), torch.float32)
    x = image if rank else image.to(memory_format=torch.channels_last)  # strides differ between the ranks
    dist.all_reduce(x)
    assert torch.equal(x, sum(data(r, (2, 3, 4, 5), torch.float32) for r in range(size)))
    x = data(rank, (8,), torch.float32)
    dist.broadcast(x[::2], 0)
    assert torch.equal(x[::2], data(0, (8,), torch.float32)[::2])
    assert torch.equal(x[1::2], data(rank, (8,), torch.float32)[1::2])
    out = torch.zeros(2, size * 3).t()
    dist.all_gather_into_tensor(out, data(rank, (3, 2), torch.float32))
    assert torch.equal(out, torch.cat([data(r, (3, 2), torch.float32) for r in range(size)]))


def case_broadcast(rank: int, size: int) -> None:
    for group, ranks in groups():
        for root in ranks:
            for kind in [*TYPES, torch.float8_e4m3fn, torch.complex128]:
                for is_async in (False, True):
                    x = data(rank, (3, 2), kind, root)
                    settle(dist.broadcast(x, root, group, is_async), is_async)
                    assert torch.equal(x.view(torch.uint8), data(root, (3, 2), kind, root).view(torch.uint8)), kind


def case_all_gather(rank: int, size: int) -> None:
    for group, ranks in groups():
        for kind in TYPES:
            for shape in SHAPES:
                for is_async in (False, True):
                    outs = [torch.zeros(shape, dtype=kind) for _ in ranks]
                    settle(dist.all_gather(outs, data(rank, shape, kind), group, is_async), is_async)
                    assert all(torch.equal(out, data(r, shape, kind)) for out, r in zip(outs, ranks)), (kind, shape)
        whole = torch.zeros(2 * len(ranks), 3)
        dist.all_gather_into_tensor(whole, data(rank, (2, 3), torch.float32), group)
        assert torch.equal(whole, torch.cat([data(r, (2, 3), torch.float32) for r in ranks]))


def case_reduce_and_reduce_scatter(rank: int, size: int) -> None:
    for group, ranks in groups():
        me = ranks.index(rank)
        for kind in [*FLOATS, *INTEGERS]:
            x = data(rank, (5,), kind)
            dist.reduce(x, ranks[-1], group=group)
            wanted = sum(data(r, (5,), kind) for r in ranks) if me == len(ranks) - 1 else data(rank, (5,), kind)
            assert torch.equal(x, wanted), (kind, x, wanted)
            parts = torch.stack([data(r, (len(ranks), 4), kind, 7) for r in ranks]).sum(0).to(kind)
            for is_async in (False, True):
                out, own = torch.zeros(4, dtype=kind), data(rank, (len(ranks), 4), kind, 7)
                settle(dist.reduce_scatter(out, list(own), group=group, async_op=is_async), is_async)
                assert torch.equal(out, parts[me]), kind
                out.zero_()
                settle(dist.reduce_scatter_tensor(out, own.reshape(-1), group=group, async_op=is_async), is_async)
                assert torch.equal(out, parts[me]), kind


def case_gather_and_scatter(rank: int, size: int) -> None:
    for group, ranks in groups():
        for kind in [*TYPES, torch.float8_e4m3fn]:
            for root in ranks:
                outs = [torch.zeros((2, 2), dtype=kind) for _ in ranks] if rank == root else None
                dist.gather(data(rank, (2, 2), kind), outs, root, group)
                for out, r in zip(outs or [], ranks):
                    assert torch.equal(out.view(torch.uint8), data(r, (2, 2), kind).view(torch.uint8)), kind
                x = torch.zeros(3, dtype=kind)
                dist.scatter(x, [data(r, (3,), kind, 5) for r in ranks] if rank == root else None, root, group)
                assert torch.equal(x.view(torch.uint8), data(rank, (3,), kind, 5).view(torch.uint8)), kind


def case_all_to_all(rank: int, size: int) -> None:
    for group, ranks in groups():
        n, me = len(ranks), ranks.index(rank)
        for kind in TYPES:
            own, out = data(rank, (2 * n, 3), kind), torch.zeros((2 * n, 3), dtype=kind)
            dist.all_to_all_single(out, own, group=group)
            assert torch.equal(out, torch.cat([data(r, (2 * n, 3), kind)[2 * me : 2 * me + 2] for r in ranks])), kind
            sent = [(me + i) % 3 for i in range(n)]  # rows from me to i
            came = [(i + me) % 3 for i in range(n)]
            own, out = data(rank, (sum(sent), 2), kind), torch.zeros((sum(came), 2), dtype=kind)
            dist.all_to_all_single(out, own, came, sent, group)
            parts = []
            for i, r in enumerate(ranks):
                theirs = [(i + k) % 3 for k in range(n)]
                at = sum(theirs[:me])
                parts.append(data(r, (sum(theirs), 2), kind)[at : at + theirs[me]])
            assert torch.equal(out, torch.cat(parts)), kind
            outs = [torch.zeros(2 + i + me, dtype=kind) for i in range(n)]
            dist.all_to_all(outs, [data(rank, (2 + i + me,), kind, i) for i in range(n)], group)
            assert all(torch.equal(o, data(r, (2 + i + me,), kind, me)) for i, (o, r) in enumerate(zip(outs, ranks)))


def case_objects(rank: int, size: int) -> None:
    for group, ranks in groups():
        found: list[Any] = [None] * len(ranks)
        dist.all_gather_object(found, {"rank": rank, "text": "x" * rank}, group)
        assert found == [{"rank": r, "text": "x" * r} for r in ranks]
        box = [{"from": rank}, rank]
        dist.broadcast_object_list(box, ranks[-1], group)
        assert box == [{"from": ranks[-1]}, ranks[-1]]
        gathered: Any = [None] * len(ranks) if rank == ranks[0] else None
        dist.gather_object((rank, "r"), gathered, ranks[0], group)
        assert gathered is None or gathered == [(r, "r") for r in ranks]
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, [f"for {r}" for r in ranks] if rank == ranks[0] else None, ranks[0], group)
        assert mine == [f"for {rank}"]


def case_point_to_point(rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    if size > 1:
        x = torch.zeros(4)
        ops = [dist.P2POp(dist.isend, torch.full((4,), float(rank)), right), dist.P2POp(dist.irecv, x, left)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert x.tolist() == [float(left)] * 4
        if rank == 0:
            for _ in range(size - 1):
                source = dist.recv(x)
                assert x.tolist() == [source + 0.5] * 4
        else:
            dist.send(torch.full((4,), rank + 0.5), 0)


def case_an_irecv_does_not_wait_for_its_sender(rank: int, size: int) -> None:
    """The sender talks to this rank only after others have heard from it."""
    group = dist.new_group()  # in which no two ranks have talked yet
    x, mine = torch.zeros(2), torch.full((2,), float(rank))
    following, before = (rank + 1) % size, (rank - 1) % size
    if size == 1:
        return
    if rank == 0:
        dist.recv(x, before, group=group)
        dist.send(mine, following, group=group)
    else:
        work = dist.irecv(x, before, group=group) if rank == 1 else None
        if work is None:
            dist.recv(x, before, group=group)
        dist.send(mine, following, group=group)
        if work is not None:
            work.wait()
    assert x.tolist() == [float(before)] * 2


def case_barriers(rank: int, size: int) -> None:
    for group, _ in groups():
        for _ in range(3):
            dist.barrier(group)
            work = dist.barrier(group, async_op=True)
            work.wait()
            dist.monitored_barrier(group, timedelta(seconds=20))


def case_coalesced(rank: int, size: int) -> None:
    xs = [data(rank, (n,), torch.float32) for n in (1, 5, 3)]
    with dist._coalescing_manager():
        for x in xs:
            dist.all_reduce(x)
    assert all(torch.equal(x, sum(data(r, (len(x),), torch.float32) for r in range(size))) for x in xs)
    outs = [torch.zeros(2 * size), torch.zeros(3 * size)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for out in outs:
            dist.all_gather_into_tensor(out, data(rank, (len(out) // size,), torch.float32))
    manager.wait()
    for out in outs:
        n = len(out) // size
        assert torch.equal(out, torch.cat([data(r, (n,), torch.float32) for r in range(size)]))


def case_many_at_once_and_out_of_order(rank: int, size: int) -> None:
    xs = [torch.full((i % 50,), float(rank + i)) for i in range(1500)]  # more than the group has names
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    futures = [work.get_future() for work in works[::7]]
    for work in reversed(works):
        work.wait()
    torch.futures.wait_all(futures)
    for i, x in enumerate(xs):
        assert torch.equal(x, torch.full((i % 50,), float(size * i + sum(range(size)))))


def case_a_dropped_work_keeps_its_tensors(rank: int, size: int) -> None:
    for _ in range(200):
        dist.all_reduce(torch.ones(1000), async_op=True)
    x = torch.ones(1000)
    dist.all_reduce(x)
    assert torch.equal(x, torch.full((1000,), float(size)))


def case_futures_chain(rank: int, size: int) -> None:
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    doubled = future.then(lambda f: f.value()[0] * 2)
    assert doubled.wait().tolist() == [2.0 * size] * 3


def case_wrong_arguments_leave_the_group_usable(rank: int, size: int) -> None:
    for bad in (-1, size, size + 3):
        for call in (
            lambda b=bad: dist.broadcast(torch.zeros(2), b),
            lambda b=bad: dist.reduce(torch.zeros(2), b),
            lambda b=bad: dist.gather(torch.zeros(2), None, b),
            lambda b=bad: dist.scatter(torch.zeros(2), None, b),
            lambda b=bad: dist.group.WORLD.send([torch.zeros(2)], b, 0),
            lambda b=bad: dist.group.WORLD.recv([torch.zeros(2)], b, 0),
        ):
            raises(ValueError, f"invalid rank {bad}", call)
    raises(ValueError, "all_gather elements", lambda: dist.all_gather([torch.zeros(9)] * size, torch.zeros(2)))
    raises(ValueError, "split", lambda: dist.all_to_all_single(torch.zeros(3), torch.zeros(3), [9] * size, [9] * size))
    raises(TypeError, "elements of type", lambda: dist.all_reduce(torch.zeros(2, dtype=torch.float8_e5m2)))
    freed = torch.ones(1000)
    freed.untyped_storage().resize_(0)
    raises(ValueError, "broadcast no memory", lambda: dist.broadcast(freed, 0))
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == size


def case_outputs_of_another_type_are_refused(rank: int, size: int) -> None:
    world, wide = dist.group.WORLD, torch.ones(2 * size)
    for other in (torch.int16, torch.int32, torch.float64):
        one, many = torch.zeros(2, dtype=other), torch.zeros(2 * size, dtype=other)
        for call in (
            lambda m=many: dist.all_gather_into_tensor(m, torch.ones(2)),
            lambda m=many: world.allgather([list(m.chunk(size))], [torch.ones(2)]),
            lambda o=one: dist.reduce_scatter_tensor(o, wide),
            lambda o=one: world.reduce_scatter([o], [list(wide.chunk(size))]),
            lambda m=many: world.all_to_all_single(m, wide),
            lambda m=many: world.alltoall(list(m.chunk(size)), list(wide.chunk(size))),
        ):
            raises(ValueError, f"{other} float32", call)


def case_roots_of_reduce_are_compared(rank: int, size: int) -> None:
    if size > 1:
        raises(RuntimeError, "disagree root 1", lambda: dist.reduce(torch.ones(2), 1 if rank == 0 else 0))
    x = torch.ones(1)
    dist.reduce(x, size - 1)
    assert x.item() == (size if rank == size - 1 else 1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("lwcc")
    run(dict(globals()))
    dist.destroy_process_group()
