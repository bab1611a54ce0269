"""The collectives on tensors, on any number of ranks."""

from __future__ import annotations

from typing import Any

import torch
from casebook import raises, run

import lwcc
import lwcc_torch as hvd

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def values(rank: int, dtype: torch.dtype, shape: tuple[int, ...] = (3, 5)) -> torch.Tensor:
    """Small whole numbers, so that sums are exact in every type."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 + rank * 3) % 5).reshape(shape).to(dtype)


def case_allreduce_sums_every_type_and_shape(rank: int, size: int) -> None:
    for dtype in FLOATS + INTS + WIDE_UNSIGNED:
        for shape in ((3, 5), (), (0,), (1, 0, 4), (1000,)):
            expected = sum(values(r, torch.int64, shape) for r in range(size))
            got = hvd.allreduce(values(rank, dtype, shape), op=hvd.Sum, name=f"sum.{dtype}.{shape}")
            assert got.dtype is dtype and got.shape == torch.Size(shape)
            assert torch.equal(got.to(torch.int64), torch.as_tensor(expected)), (dtype, shape)


def case_allreduce_averages_and_takes_extremes(rank: int, size: int) -> None:
    for dtype in FLOATS + INTS:
        mine = values(rank, dtype)
        all_of_them = torch.stack([values(r, torch.float64) for r in range(size)])
        assert torch.equal(hvd.allreduce(mine, op=hvd.Min).double(), all_of_them.amin(0)), dtype
        assert torch.equal(hvd.allreduce(mine, op=hvd.Max).double(), all_of_them.amax(0)), dtype
        product = hvd.allreduce((mine % 3).to(dtype), op=hvd.Product).double()
        assert torch.equal(product, (all_of_them % 3).prod(0)), dtype
        mean = all_of_them.sum(0) / size
        got = hvd.allreduce(mine).double()
        close = (got - mean.to(dtype).double()).abs().max()
        assert close <= (0 if not dtype.is_floating_point else 0.02 if dtype.itemsize == 2 else 1e-6), dtype


def case_bool_is_any_and_all(rank: int, size: int) -> None:
    mine = torch.tensor([True, rank == 0, False])
    assert hvd.allreduce(mine, op=hvd.Max).tolist() == [True, True, False]
    assert hvd.allreduce(mine, op=hvd.Min).tolist() == [True, size == 1, False]
    assert hvd.allgather(mine).tolist() == [flag for r in range(size) for flag in (True, r == 0, False)]


def case_complex_numbers_travel_as_pairs(rank: int, size: int) -> None:
    for dtype in (torch.complex64, torch.complex128):
        mine = torch.full((4, 3), complex(rank, -rank), dtype=dtype)
        total = sum(range(size))
        assert torch.equal(hvd.allreduce(mine, op=hvd.Sum), torch.full((4, 3), complex(total, -total), dtype=dtype))
        assert torch.equal(
            hvd.allreduce(mine.conj(), op=hvd.Sum), torch.full((4, 3), complex(total, total), dtype=dtype)
        )
        assert hvd.allreduce(torch.tensor(1j, dtype=dtype), op=hvd.Sum) == size * 1j
        assert hvd.allgather(mine).shape == (4 * size, 3) and hvd.allgather(mine[0, 0]).shape == (size,)
        assert torch.equal(hvd.broadcast(mine, size - 1), torch.full((4, 3), complex(size - 1, 1 - size), dtype=dtype))
        hvd.allreduce_(mine, op=hvd.Sum)
        assert mine[0, 0] == complex(total, -total)
        raises(ValueError, "complex", lambda: hvd.allreduce(mine, op=hvd.Max))  # noqa: B023


def case_scale_factors_multiply_before_and_after(rank: int, size: int) -> None:
    mine = torch.full((5,), float(rank + 1))
    total = float(sum(r + 1 for r in range(size)))
    for dtype in FLOATS:
        got = hvd.allreduce(mine.to(dtype), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
        assert torch.equal(got, torch.full((5,), total * 2, dtype=dtype))
    averaged = hvd.allreduce(mine, prescale_factor=2.0, postscale_factor=0.25)
    assert torch.allclose(averaged, torch.full((5,), total / size / 2))


def case_average_argument_is_deprecated_but_works(rank: int, size: int) -> None:
    mine = torch.full((2,), float(rank))
    assert torch.equal(hvd.allreduce(mine, average=False), torch.full((2,), float(sum(range(size)))))
    assert torch.allclose(hvd.allreduce(mine, average=True), torch.full((2,), sum(range(size)) / size))
    raises(ValueError, "op= average=", lambda: hvd.allreduce(mine, average=True, op=hvd.Sum))


def case_compression_halves_and_averages_last(rank: int, size: int) -> None:
    mine = torch.full((64,), 0.1 + rank)
    mean = torch.full((64,), 0.1 + (size - 1) / 2)
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        got = hvd.allreduce(mine, compression=compression)
        assert got.dtype is torch.float32 and torch.allclose(got, mean, rtol=1e-2)
        assert hvd.allreduce(torch.tensor([rank]), compression=compression, op=hvd.Sum).tolist() == [sum(range(size))]


def case_inputs_need_not_be_contiguous_but_targets_must(rank: int, size: int) -> None:
    mine = torch.arange(12.0).reshape(3, 4) + rank
    total = (torch.arange(12.0).reshape(3, 4) * size + sum(range(size))).t()
    assert torch.equal(hvd.allreduce(mine.t(), op=hvd.Sum), total)
    assert torch.equal(hvd.allgather(mine.t()[:1]), torch.cat([mine.t()[:1] - rank + r for r in range(size)]))
    raises(ValueError, "contiguous shape strides", lambda: hvd.allreduce_(mine.t()))
    raises(ValueError, "contiguous", lambda: hvd.broadcast_async_(mine[:, 1], 0))


class Wrapper(torch.Tensor):
    """A tensor without memory, as DTensor and FakeTensor are."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(func)


def case_what_is_no_dense_cpu_tensor_is_refused(rank: int, size: int) -> None:
    raises(ValueError, "CPU meta", lambda: hvd.allreduce(torch.empty(3, device="meta")))
    raises(TypeError, "torch.Tensor list", lambda: hvd.allreduce([1.0, 2.0]))
    raises(ValueError, "sparse", lambda: hvd.allreduce(torch.eye(3).to_sparse()))
    raises(TypeError, "float8", lambda: hvd.allreduce(torch.zeros(3).to(torch.float8_e5m2)))
    freed = torch.ones(1000)
    freed.untyped_storage().resize_(0)
    for bad in (freed, torch.Tensor._make_wrapper_subclass(Wrapper, (1000,))):
        raises(ValueError, f"{type(bad).__name__} (1000,) no memory", lambda b=bad: hvd.allreduce(b))
        raises(ValueError, "no memory", lambda b=bad: hvd.allreduce_(b))
        raises(ValueError, "no memory", lambda b=bad: hvd.allgather(b))
    raises(ValueError, "dimension", lambda: hvd.reducescatter(torch.tensor(1.0)))
    raises(ValueError, "splits", lambda: hvd.alltoall(torch.zeros(3), splits=[1] * (size + 1)))


def case_in_place_forms_write_their_tensor_and_autograd_knows(rank: int, size: int) -> None:
    mine = torch.full((3,), float(rank))
    before = mine._version
    assert hvd.allreduce_(mine, op=hvd.Sum) is mine and mine[0] == sum(range(size))
    assert mine._version > before
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * mine).sum()
    hvd.broadcast_(mine, 0)
    raises(RuntimeError, "modified inplace", loss.backward)


def case_handles_are_ints_polled_and_used_once(rank: int, size: int) -> None:
    handles = [hvd.allreduce_async(torch.full((2,), float(i)), name=f"h.{i}", op=hvd.Sum) for i in range(20)]
    assert all(isinstance(h, int) for h in handles) and len(set(handles)) == 20
    for i in reversed(range(20)):
        assert hvd.synchronize(handles[i]).tolist() == [i * size] * 2
    raises(ValueError, "handle", lambda: hvd.synchronize(handles[0]))
    handle = hvd.broadcast_async(torch.tensor([rank]), size - 1)
    while not hvd.poll(handle):
        pass
    assert hvd.synchronize(handle).tolist() == [size - 1]


def case_names_pair_calls_in_any_order(rank: int, size: int) -> None:
    order = torch.randperm(30, generator=torch.Generator().manual_seed(100 + rank)).tolist()
    handles = {i: hvd.allreduce_async(torch.full((i,), float(i)), name=f"any.{i}", op=hvd.Sum) for i in order}
    for i, handle in handles.items():
        assert hvd.synchronize(handle).tolist() == [float(i * size)] * i


def case_groups_run_as_one(rank: int, size: int) -> None:
    mine = [
        torch.full((i + 1,), float(rank), dtype=t) for i, t in enumerate((torch.float32, torch.float64, torch.bfloat16))
    ]
    total = sum(range(size))
    for name in (None, "named"):
        for got in (
            hvd.grouped_allreduce(mine, op=hvd.Sum, name=name),
            hvd.synchronize(hvd.grouped_allreduce_async(mine, op=hvd.Sum, name=name)),
        ):
            assert [g.tolist() for g in got] == [[total] * (i + 1) for i in range(3)]
    assert hvd.grouped_allreduce([]) == []
    gathered = hvd.grouped_allgather([m[: rank + 1] for m in mine])
    assert [len(g) for g in gathered] == [sum(min(r + 1, i + 1) for r in range(size)) for i in range(3)]
    scattered = hvd.grouped_reducescatter([torch.ones(size, 2), torch.ones(2 * size)], op=hvd.Sum)
    assert scattered[0].tolist() == [[size] * 2] and scattered[1].tolist() == [size] * 2
    copies = [m.clone() for m in mine]
    hvd.grouped_allreduce_(copies, op=hvd.Sum)
    assert all(torch.equal(c, torch.full_like(c, total)) for c in copies)
    handle = hvd.grouped_allreduce_async_(copies, op=hvd.Average)
    assert all(a is b for a, b in zip(hvd.synchronize(handle), copies))


def case_allgather_takes_different_first_dimensions(rank: int, size: int) -> None:
    for tail in ((), (3,), (2, 2)):
        mine = torch.full((rank, *tail), rank, dtype=torch.int32)
        got = hvd.allgather(mine)
        assert torch.equal(got, torch.cat([torch.full((r, *tail), r, dtype=torch.int32) for r in range(size)]))
    assert hvd.allgather(torch.tensor(float(rank))).tolist() == list(range(size))
    assert hvd.synchronize(hvd.allgather_async(torch.zeros(0, 4))).shape == (0, 4)


def case_broadcast_comes_from_any_root(rank: int, size: int) -> None:
    for root in range(size):
        for dtype in FLOATS + INTS + (torch.bool,):
            mine = values(rank, dtype)
            assert torch.equal(hvd.broadcast(mine, root), values(root, dtype))
            hvd.broadcast_(mine, root)
            assert torch.equal(mine, values(root, dtype))


def case_alltoall_deals_rows(rank: int, size: int) -> None:
    mine = torch.arange(2 * size).reshape(-1, 1) + 100 * rank
    got = hvd.alltoall(mine)
    assert got.flatten().tolist() == [100 * r + 2 * rank + k for r in range(size) for k in range(2)]
    splits = torch.tensor([r + rank for r in range(size)], dtype=torch.int32)
    rows = torch.full((int(splits.sum()), 3), float(rank))
    got, received = hvd.alltoall(rows, splits)
    assert received.dtype is torch.int32 and received.tolist() == [r + rank for r in range(size)]
    assert torch.equal(got, torch.cat([torch.full((r + rank, 3), float(r)) for r in range(size)]))
    again, received = hvd.synchronize(hvd.alltoall_async(rows, splits.tolist()))
    assert torch.equal(again, got) and received.sum() == len(got)


def case_reducescatter_gives_the_first_ranks_more(rank: int, size: int) -> None:
    rows = 2 * size + 1
    mine = torch.arange(rows, dtype=torch.float64).reshape(-1, 1) * (rank + 1)
    factor = sum(r + 1 for r in range(size))
    begin = rank * 2 + min(rank, 1)
    expected = torch.arange(rows, dtype=torch.float64).reshape(-1, 1)[begin : begin + 2 + (rank < 1)] * factor
    assert torch.equal(hvd.reducescatter(mine, op=hvd.Sum), expected)
    assert torch.allclose(hvd.reducescatter(mine), expected / size)
    assert torch.equal(hvd.synchronize(hvd.reducescatter_async(mine, op=hvd.Sum)), expected)
    raises(ValueError, "Average Sum Max", lambda: hvd.reducescatter(mine, op=hvd.Max))


def case_gradients_of_allreduce_are_reduced_alike(rank: int, size: int) -> None:
    for op, factor in ((hvd.Sum, float(size)), (hvd.Average, 1.0)):
        x = torch.full((3,), float(rank), requires_grad=True)
        hvd.allreduce(x, op=op, prescale_factor=0.5).mul(2).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [factor] * 3
    x, y = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    a, b = hvd.grouped_allreduce([x, y], op=hvd.Sum)
    (a.sum() * 2 + b.sum()).backward()
    assert x.grad.tolist() == [2.0 * size] * 2 and y.grad.tolist() == [1.0 * size] * 3
    z = torch.ones(2, requires_grad=True)
    (first,) = torch.autograd.grad((hvd.allreduce(z, op=hvd.Sum) ** 2).sum(), z, create_graph=True)
    first.sum().backward()
    assert z.grad.tolist() == [2.0 * size * size] * 2
    raises(NotImplementedError, "Max gradient", hvd.allreduce(z, op=hvd.Max).sum().backward)


def case_gradients_of_allgather_and_broadcast_are_averages(rank: int, size: int) -> None:
    x = torch.ones(rank + 1, 2, requires_grad=True)
    gathered = hvd.allgather(x)
    weights = torch.arange(len(gathered), dtype=torch.float32).unsqueeze(1) * (rank + 1)
    (gathered * weights).sum().backward()
    begin, mean = sum(r + 1 for r in range(rank)), sum(r + 1 for r in range(size)) / size
    assert torch.allclose(x.grad, (torch.arange(begin, begin + rank + 1.0) * mean).unsqueeze(1).expand(-1, 2))
    y = torch.ones(3, requires_grad=True)
    (hvd.broadcast(y, size - 1) * (rank + 1)).sum().backward()
    assert torch.allclose(y.grad, torch.full((3,), mean if rank == size - 1 else 0.0))
    scalar = torch.tensor(2.0, requires_grad=True)
    hvd.allgather(scalar).sum().backward()
    assert scalar.grad.shape == () and scalar.grad == 1


def case_gradients_of_alltoall_and_reducescatter_travel_back(rank: int, size: int) -> None:
    x = torch.ones(sum(range(size)) + size * rank, 2, requires_grad=True)
    rows, received = hvd.alltoall(x, [r + rank for r in range(size)])
    (rows * (rank + 1)).sum().backward()
    expected = torch.cat([torch.full((r + rank, 2), r + 1.0) for r in range(size)])
    assert torch.equal(x.grad, expected) and received.sum() == len(rows)
    for op, factor in ((hvd.Sum, size), (hvd.Average, 1)):
        y = torch.ones(2 * size + 1, requires_grad=True)
        (hvd.reducescatter(y, op=op) * (rank + 1)).sum().backward()
        counts = [2 + (r < 1) for r in range(size)]
        assert y.grad.tolist() == [float(factor * (r + 1)) for r in range(size) for _ in range(counts[r])]


def case_sparse_tensors_are_summed_by_row(rank: int, size: int) -> None:
    dense = torch.zeros(10, 3)
    dense[rank], dense[9] = 1.0, rank
    mine = dense.to_sparse(1)
    for op, divisor in ((hvd.Sum, 1), (hvd.Average, size)):
        got = hvd.sparse_allreduce_async(mine, f"sparse.{int(op)}", op)()
        expected = torch.zeros(10, 3)
        expected[:size], expected[9] = 1.0 / divisor, sum(range(size)) / divisor
        assert got.is_sparse and torch.allclose(got.to_dense(), expected)
    if size > 1:
        odd = int(rank == 1)
        for shape, op in (((10 + odd, 3), hvd.Sum), ((10, 3), hvd.Sum if odd else hvd.Average)):
            tall = torch.sparse_coo_tensor(
                torch.tensor([[shape[0] - 1]]), torch.ones(1, 3), shape, check_invariants=True
            )
            handle = hvd.sparse_allreduce_async(tall, "sparse.odd", op)
            raises(lwcc.Mismatch, "sparse.odd disagree 0: 1: op Sum", lambda h=handle: hvd.synchronize(h))


def case_process_sets_keep_to_themselves(rank: int, size: int) -> None:
    if size < 3:
        return
    pair = hvd.add_process_set([0, size - 1])
    if pair.included():
        mine = torch.full((3,), float(rank), requires_grad=True)
        hvd.allreduce(mine, process_set=pair, op=hvd.Sum).sum().backward()
        assert mine.grad.tolist() == [2.0] * 3
        assert hvd.allgather(torch.tensor([rank]), process_set=pair).tolist() == [0, size - 1]
        assert hvd.broadcast(torch.tensor([rank]), size - 1, process_set=pair).tolist() == [size - 1]
        assert hvd.broadcast_object({"of": rank}, size - 1, process_set=pair) == {"of": size - 1}
        half = hvd.allreduce(torch.full((2,), float(rank)), process_set=pair, compression=hvd.Compression.fp16)
        assert half.tolist() == [(size - 1) / 2] * 2
    else:
        raises(ValueError, "", lambda: hvd.allreduce(torch.ones(3), process_set=pair))
    # calls without a name are counted for each set apart
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size
    hvd.barrier()
    assert hvd.remove_process_set(pair)


def case_a_mismatch_is_raised_everywhere_and_the_job_goes_on(rank: int, size: int) -> None:
    if size == 1:
        return
    raises(hvd.Mismatch, "shape.differs", lambda: hvd.allreduce(torch.ones(2 + rank), name="shape.differs"))
    wrong = torch.ones(2, dtype=torch.float32 if rank else torch.float64)
    raises(hvd.HorovodInternalError, "type.differs", lambda: hvd.allreduce_(wrong, name="type.differs"))
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [size] * 2


def case_a_pending_name_cannot_be_used_again(rank: int, size: int) -> None:
    if rank == 0 and size > 1:
        handle = hvd.allreduce_async(torch.ones(2), name="twice", op=hvd.Sum)
        raises(ValueError, "twice", lambda: hvd.allreduce_async(torch.ones(2), name="twice"))
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async(torch.ones(2), name="twice", op=hvd.Sum)
    assert hvd.synchronize(handle).tolist() == [size] * 2


def case_capabilities_and_missing_names_answer(rank: int, size: int) -> None:
    assert hvd.gloo_built() and hvd.gloo_enabled()
    assert not any((hvd.mpi_built(), hvd.mpi_enabled(), hvd.mpi_threads_supported()))
    assert not any((hvd.nccl_built(), hvd.ddl_built(), hvd.ccl_built(), hvd.cuda_built(), hvd.rocm_built()))
    assert hvd.is_initialized() and hvd.local_size() * hvd.cross_size() == size and hvd.is_homogeneous()
    assert (hvd.rank(), hvd.size()) == (rank, size)
    assert hvd.local_rank() + hvd.cross_rank() * hvd.local_size() == rank
    assert hvd.global_process_set.process_set_id == 0 and hvd.global_process_set.size() == size
    assert hvd.ProcessSet([0]).rank() is None
    assert [int(op) for op in (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product)] == list(range(6))
    assert issubclass(hvd.HorovodInternalError, RuntimeError) and not hasattr(hvd, "no_such_name")
    assert hvd.HostsUpdatedInterrupt(skip_sync=True).skip_sync and issubclass(
        hvd.HorovodVersionMismatchError, ImportError
    )


def case_forms_agree(rank: int, size: int) -> None:
    """Blocking, asynchronous, in place and grouped, in the world and in a set: one result."""
    few = hvd.add_process_set(list(range(0, size, 2))) if size > 1 else None
    for ranks in (None, few) if few is not None and few.included() else (None,):
        members = list(range(size)) if ranks is None else list(ranks.ranks or [])
        for make in (lambda r: torch.arange(6.0) + r, lambda r: torch.tensor(r + 0.5), lambda r: torch.zeros(0, 3)):
            x, total = make(rank), sum(make(r) for r in members)
            at = {"process_set": ranks}
            several = [x, x + 1]
            sums = [
                hvd.allreduce(x, op=hvd.Sum, **at), hvd.synchronize(hvd.allreduce_async(x, op=hvd.Sum, **at)),
                hvd.allreduce_(x.clone(), op=hvd.Sum, **at),
                hvd.synchronize(hvd.allreduce_async_(x.clone(), op=hvd.Sum, **at)),
                hvd.grouped_allreduce(several, op=hvd.Sum, **at)[0],
                hvd.synchronize(hvd.grouped_allreduce_async(several, op=hvd.Sum, **at))[0],
                hvd.grouped_allreduce_([t.clone() for t in several], op=hvd.Sum, **at)[0],
                hvd.synchronize(hvd.grouped_allreduce_async_([t.clone() for t in several], op=hvd.Sum, **at))[0],
            ]  # fmt: skip
            assert all(torch.equal(got, torch.as_tensor(total)) for got in sums), (ranks, x)
            gathers = [
                hvd.allgather(x, **at), hvd.synchronize(hvd.allgather_async(x, **at)),
                hvd.grouped_allgather(several, **at)[0],
                hvd.synchronize(hvd.grouped_allgather_async(several, **at))[0],
            ]  # fmt: skip
            whole = torch.cat([make(r).reshape(1) if x.dim() == 0 else make(r) for r in members])
            assert all(torch.equal(got, whole) for got in gathers)
            if x.dim():
                op = hvd.Average
                scattered = [
                    hvd.reducescatter(x, op=op, **at), hvd.synchronize(hvd.reducescatter_async(x, op=op, **at)),
                    hvd.grouped_reducescatter(several, op=op, **at)[0],
                    hvd.synchronize(hvd.grouped_reducescatter_async(several, op=op, **at))[0],
                ]  # fmt: skip
                rows = [len(x) // len(members) + (i < len(x) % len(members)) for i in range(len(members))]
                me = members.index(rank)
                part = torch.as_tensor(total)[sum(rows[:me]) : sum(rows[: me + 1])] / len(members)
                assert all(torch.allclose(got, part) for got in scattered)
    if few is not None:
        assert hvd.remove_process_set(few)


if __name__ == "__main__":
    run(dict(globals()))
