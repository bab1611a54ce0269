"""Every collective x element type x form x layout x set, against what one process computes from all ranks' inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, Optional

import torch
from casebook import raises, run

import lwcc_torch as hvd

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
COMPLEX = (torch.complex64, torch.complex128)
TYPES = (*FLOATS, *SIGNED, *UNSIGNED, *COMPLEX, torch.bool)
SAMPLE = (torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64)
OPS = (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product)

Make = Callable[[int, int], torch.Tensor]  # (rank, rows) -> that rank's input


def numbers(rank: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Small whole numbers, of either sign where the type has one: sums and products are exact in every type."""
    count = torch.Size(shape).numel()
    found = ((torch.arange(count) * 7 + rank * 3) % 5 - 2).reshape(shape)
    if dtype in UNSIGNED or dtype is torch.bool:
        found = found % 3 if dtype in UNSIGNED else found > 0
    if dtype.is_complex:
        return torch.complex(found.double(), found.flip(0).double() if found.dim() else -found.double()).to(dtype)
    return found.to(dtype)


def layouts(dtype: torch.dtype) -> Iterator[tuple[str, Make]]:
    """The shapes and strides of inputs; types that are handled alike share the unusual ones."""
    yield "plain", lambda rank, rows: numbers(rank, dtype, (rows, 2))
    if dtype not in SAMPLE:
        return
    yield "no rows", lambda rank, rows: numbers(rank, dtype, (0, 3))
    yield "no columns", lambda rank, rows: numbers(rank, dtype, (rows, 0))
    yield "scalar", lambda rank, rows: numbers(rank, dtype, ())
    yield "transposed", lambda rank, rows: numbers(rank, dtype, (2, rows)).t()
    yield (
        "channels last",
        lambda rank, rows: numbers(rank, dtype, (rows, 2, 3, 2)).to(memory_format=torch.channels_last),
    )


def sets(size: int) -> Iterator[tuple[Optional[hvd.ProcessSet], list[int]]]:
    """All ranks, and all but the last."""
    yield None, list(range(size))
    few = hvd.add_process_set(range(size - 1)) if size > 1 else None
    if few is not None:
        if few.included():
            yield few, list(range(size - 1))
        assert hvd.remove_process_set(few)


def reduced(op: int, inputs: list[torch.Tensor]) -> torch.Tensor:
    """The definition."""
    dtype = inputs[0].dtype
    wide = [t.to(torch.complex128 if dtype.is_complex else torch.float64) for t in inputs]
    if op in (hvd.Min, hvd.Max):
        found = reduce(torch.minimum if op == hvd.Min else torch.maximum, wide)
    elif op == hvd.Product:
        found = reduce(torch.mul, wide)
    else:
        found = sum(wide[1:], wide[0]) / (len(wide) if op == hvd.Average else 1)
    if not dtype.is_floating_point and not dtype.is_complex:
        found = found.clamp(max=1) if dtype is torch.bool else found.trunc()
    return found.to(dtype)


def allowed(op: int, dtype: torch.dtype) -> bool:
    if dtype.is_complex:
        return op in (hvd.Sum, hvd.Average)
    return dtype is not torch.bool or op != hvd.Average


def same(got: torch.Tensor, want: torch.Tensor, what: object) -> None:
    assert got.dtype is want.dtype and got.shape == want.shape, (what, got.dtype, got.shape, want.shape)
    if got.dtype in UNSIGNED:
        got, want = got.to(torch.int64), want.to(torch.int64)
    tolerance = 0.0
    if got.is_floating_point() or got.is_complex():
        tolerance = 2 * torch.finfo(got.dtype).eps
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}")


def forms(
    call: str, x: Any, *rest: Any, in_place: bool = False, grouped: bool = True, all_of_them: bool = True, **at: Any
) -> list[torch.Tensor]:
    """Start a call in all its forms, or one of each kind; return what each left, when all are under way."""
    waits: list[Callable[[], Any]] = []

    def form(name: str, tensors: Any, pick: Callable[[Any], Any]) -> None:
        made = getattr(hvd, name)(tensors, *rest, **at)
        waits.append(lambda: pick(hvd.synchronize(made)) if "_async" in name else pick(made))

    def copy() -> torch.Tensor:
        return x.clone(memory_format=torch.contiguous_format)

    form(f"{call}_async", x, lambda out: out)
    if in_place:
        form(f"{call}_async_", copy(), lambda out: out)
    if grouped:
        form(f"grouped_{call}_async", [x, x[:0] if x.dim() else x], lambda out: out[0])
    if in_place and all_of_them:
        form(f"{call}_", copy(), lambda out: out)
    if in_place and grouped and all_of_them:
        for name in (f"grouped_{call}_async_", f"grouped_{call}_"):
            form(name, [copy(), copy()], lambda out: out[1])
    if grouped and all_of_them:
        form(f"grouped_{call}", [x[:0] if x.dim() else x, x], lambda out: out[1])
    if all_of_them or not in_place:
        form(call, x, lambda out: out)
    return [wait() for wait in waits]


def case_allreduce(rank: int, size: int) -> None:
    for ranks, members in sets(size):
        for dtype in TYPES:
            for layout, make in layouts(dtype):
                for op in OPS:
                    if not allowed(op, dtype):
                        continue
                    want = reduced(op, [make(r, 12) for r in members])
                    how = {"in_place": True, "all_of_them": layout in ("plain", "scalar"), "process_set": ranks}
                    for got in forms("allreduce", make(rank, 12), op=op, **how):
                        same(got, want, (layout, op, len(members)))


def case_allgather(rank: int, size: int) -> None:
    for ranks, members in sets(size):
        for dtype in TYPES:
            for layout, make in layouts(dtype):
                parts = [make(r, 3 * r + 1) for r in members]
                want = torch.cat([p.reshape(1) if p.dim() == 0 else p for p in parts])
                for got in forms("allgather", make(rank, 3 * rank + 1), process_set=ranks):
                    same(got, want, (layout, dtype, len(members)))


def case_broadcast(rank: int, size: int) -> None:
    for ranks, members in sets(size):
        for dtype in TYPES:
            for layout, make in layouts(dtype):
                for root in members if layout == "plain" else members[-1:]:
                    every = {"in_place": True, "grouped": False, "process_set": ranks}
                    for got in forms("broadcast", make(rank, 5), root, **every):
                        same(got, make(root, 5), (layout, dtype, root))


def case_reducescatter(rank: int, size: int) -> None:
    for ranks, members in sets(size):
        n, me = len(members), members.index(rank)
        for rows in (1, 2 * n + 1):
            begin = me * (rows // n) + min(me, rows % n)
            part = slice(begin, begin + rows // n + (me < rows % n))
            for dtype in TYPES:
                for layout, make in layouts(dtype):
                    for op in (hvd.Sum, hvd.Average):
                        if not allowed(op, dtype) or layout == "scalar":
                            continue
                        want = reduced(op, [make(r, rows) for r in members])[part]
                        for got in forms("reducescatter", make(rank, rows), op=op, process_set=ranks):
                            same(got, want, (layout, op, rows, n))


def case_alltoall(rank: int, size: int) -> None:
    for ranks, members in sets(size):
        n, me = len(members), members.index(rank)
        deals = {r: [(i + j) % 3 for j in range(n)] for i, r in enumerate(members)}
        for dtype in TYPES:
            for layout, make in layouts(dtype):
                if layout == "scalar":
                    continue
                mine = make(rank, 12)
                rows = len(mine) // n
                want = torch.cat([make(r, 12)[me * rows : (me + 1) * rows] for r in members])
                for got in forms("alltoall", mine, grouped=False, process_set=ranks):
                    same(got, want, (layout, dtype, n))
                splits = {r: deals[r] if layout != "no rows" else [0] * n for r in members}
                parts = [make(r, sum(deals[r])).split(splits[r])[me] for r in members]
                sent = torch.tensor(splits[rank], dtype=torch.int32)
                for got, came in forms(
                    "alltoall", make(rank, sum(deals[rank])), sent, grouped=False, process_set=ranks
                ):
                    same(got, torch.cat(parts), (layout, dtype, deals))
                    assert came.tolist() == [splits[r][me] for r in members]


Call = Callable[..., torch.Tensor]


def weighted(outputs: list[torch.Tensor], index: int) -> torch.Tensor:
    """One rank's loss: not linear, and another on each rank."""
    return sum(((y * (index + 1) / 4).sin() * (index + 2)).sum() for y in outputs)  # type: ignore[return-value]


def one_process(kind: str, inputs: list[torch.Tensor], root: int, splits: list[list[int]]) -> list[torch.Tensor]:
    """What each rank gets, as differentiable functions of all inputs."""
    n = len(inputs)
    if kind == "allgather":
        return [torch.cat([x.reshape(1) if x.dim() == 0 else x for x in inputs])] * n
    if kind == "broadcast":
        return [inputs[root] * 1] * n
    if kind == "alltoall":
        return [torch.cat([x.split(splits[i])[j] for i, x in enumerate(inputs)]) for j in range(n)]
    total = sum(0.5 * x for x in inputs) * 3 / (n if "average" in kind else 1)
    if kind.startswith("allreduce"):
        return [total] * n
    rows = [len(total) // n + (i < len(total) % n) for i in range(n)]
    return list(total.split(rows))


def reverse_factor(kind: str, n: int) -> float:
    """What Horovod's gradients are of the sum of all ranks' losses: of the mean where a rank's tensor goes to all."""
    return {"allgather": 1 / n, "broadcast": 1 / n, "reducescatter": n, "reducescatter average": n}.get(kind, 1.0)


def call_of(kind: str, root: int, splits: list[int], at: dict[str, Any]) -> Call:
    op = hvd.Average if "average" in kind else hvd.Sum
    scales = {"op": op, "prescale_factor": 0.5, "postscale_factor": 3.0}
    if kind == "broadcast":
        return lambda x: hvd.broadcast(x, root, **at)
    if kind == "alltoall":
        return lambda x: hvd.alltoall(x, splits, **at)[0]
    name = kind.split()[0]
    return lambda x: getattr(hvd, name)(x, **at, **(scales if name != "allgather" else {}))


def case_gradients_are_those_of_one_process(rank: int, size: int) -> None:
    kinds = ("allreduce", "allreduce average", "allgather", "broadcast", "alltoall", "reducescatter",
             "reducescatter average")  # fmt: skip
    for ranks, members in sets(size):
        n, me = len(members), members.index(rank)
        splits = [[(i + j) % 3 for j in range(n)] for i in range(n)]
        for kind in kinds:
            for dtype in (*FLOATS[2:], torch.bfloat16):
                for layout, make in layouts(dtype):
                    if (layout == "scalar" and kind[:3] in ("all", "red") and kind[:4] not in ("allr", "allg")) or (
                        layout == "no rows" and kind == "alltoall"
                    ):
                        continue
                    rows = {"alltoall": [sum(row) for row in splits], "allgather": list(range(n))}.get(kind, [5] * n)
                    inputs = [make(r, rows[i]).detach().double() for i, r in enumerate(members)]
                    leaves = [x.clone().requires_grad_() for x in inputs]
                    outputs = one_process(kind, leaves, n - 1, splits)
                    sum(weighted([y], i) for i, y in enumerate(outputs)).backward()  # type: ignore[union-attr]
                    mine = inputs[me].to(dtype).requires_grad_()
                    got = call_of(kind, members[-1], splits[me], {"process_set": ranks})(mine)
                    weighted([got], me).backward()
                    want = leaves[me].grad if leaves[me].grad is not None else torch.zeros_like(inputs[me])
                    assert mine.grad is not None and mine.grad.dtype is dtype, (kind, layout)
                    near = {"rtol": 0.05, "atol": 0.3} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
                    torch.testing.assert_close(mine.grad.double(), want * reverse_factor(kind, n), **near)


def case_gradients_of_groups_are_those_of_their_members(rank: int, size: int) -> None:
    for call, at in (("allreduce", {"op": hvd.Sum}), ("allgather", {}), ("reducescatter", {"op": hvd.Average})):
        one, two = (numbers(rank, torch.float64, (2 * size, k)).requires_grad_() for k in (1, 3))
        weighted(getattr(hvd, f"grouped_{call}")([one, two], **at), rank).backward()
        for x in (one, two):
            alone = x.detach().clone().requires_grad_()
            weighted([getattr(hvd, call)(alone, **at)], rank).backward()
            torch.testing.assert_close(x.grad, alone.grad)


def case_a_call_names_its_algorithm(rank: int, size: int) -> None:
    x = torch.arange(24.0).reshape(12, 2) + rank
    for call, names, in_place, grouped in (
        ("allreduce", ("ring", "circulant", "shm"), True, True), ("broadcast", ("binomial",), True, False),
        ("allgather", ("ring", "bruck"), False, True), ("reducescatter", ("ring", "circulant"), False, True),
        ("alltoall", ("pairwise",), False, False),
    ):  # fmt: skip
        rest = (0,) if call == "broadcast" else ()
        want = getattr(hvd, call)(x, *rest)
        for name in names:
            for got in forms(call, x, *rest, in_place=in_place, grouped=grouped, algorithm=name):
                same(got, want, (call, name))
        raises(ValueError, f"{call} no_such", lambda: getattr(hvd, call)(x, *rest, algorithm="no_such"))  # noqa: B023
        if size > 1:  # it is what the ranks agree about, so it is what runs
            for form in (call, f"{call}_async", *([f"grouped_{call}"] if grouped else [])):

                def disagree(form: str = form) -> None:
                    tensors: Any = [x] if "grouped" in form else x
                    made = getattr(hvd, form)(tensors, *rest, name="apart", algorithm=names[0] if rank else None)  # noqa: B023
                    hvd.synchronize(made)

                raises(hvd.Mismatch, f"apart algorithm {names[0]}", disagree)
    y = x.clone().requires_grad_()
    hvd.allreduce(y, op=hvd.Sum, algorithm="ring").sum().backward()
    assert y.grad is not None and torch.equal(y.grad, torch.full_like(x, size))
    hvd.barrier(algorithm="dissemination")


def case_a_refused_group_leaves_nothing_behind(rank: int, size: int) -> None:
    pending = hvd.allreduce_async(torch.ones(2), name="group[1]", op=hvd.Sum) if rank == 0 else None
    for _ in range(50 if rank == 0 else 0):
        pair = [torch.ones(2), torch.ones(3)]
        raises(ValueError, "group[1]", lambda: hvd.grouped_allreduce_async(pair, name="group"))  # noqa: B023
    hvd.barrier()
    pending = pending or hvd.allreduce_async(torch.ones(2), name="group[1]", op=hvd.Sum)
    assert hvd.synchronize(pending).tolist() == [size] * 2
    for _ in range(2):
        got = hvd.grouped_allreduce([torch.ones(2), torch.ones(3)], name="group", op=hvd.Sum)
        assert [g.tolist() for g in got] == [[size] * 2, [size] * 3]


def case_every_type_of_torch_works_or_is_named(rank: int, size: int) -> None:
    float8 = [t for name, t in vars(torch).items() if name.startswith("float8_")]
    assert torch.float8_e4m3fn in float8 and torch.float8_e5m2 in float8
    for dtype in sorted({t for t in vars(torch).values() if isinstance(t, torch.dtype)}, key=str):
        parts = [torch.arange(2 * size, dtype=torch.uint8) * 7 + 50 * r for r in range(size)]
        x = torch.empty(2 * size, dtype=dtype) if dtype not in float8 else parts[rank].view(dtype)
        reducing = [lambda x=x: hvd.allreduce(x, op=hvd.Sum), lambda x=x: hvd.reducescatter(x, op=hvd.Sum)]
        moving = [lambda x=x: hvd.broadcast(x, 0), lambda x=x: hvd.allgather(x), lambda x=x: hvd.alltoall(x)]
        if dtype in (*TYPES, torch.complex32):
            assert all(call().dtype is dtype for call in (*reducing, *moving))
            continue
        for call in [*reducing, *([] if dtype in float8 else moving)]:
            raises(TypeError, f"{dtype}, float32 uint64", call)
        if dtype in float8:
            raises(TypeError, "float8 broadcast tensor.float()", reducing[0])
            wants = [parts[0], torch.cat(parts), torch.cat([p[2 * rank :][:2] for p in parts])]
            got = [call() for call in moving]
            inplace = x.clone()
            assert hvd.broadcast_(inplace, 0) is inplace and len(hvd.grouped_allgather([x, x[:1]])[1]) == size
            for one, want in zip((*got, inplace), (*wants, parts[0])):
                assert one.dtype is dtype and torch.equal(one.view(torch.uint8), want), (dtype, one, want)


if __name__ == "__main__":
    run(dict(globals()))
