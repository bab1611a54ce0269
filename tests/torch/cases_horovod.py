"""Adasum, SyncBatchNorm, elastic, sparse handles, the timeline, memory: the rest of Horovod's interface."""

from __future__ import annotations

import array
import copy
import fcntl
import json
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from casebook import raises, run, same_everywhere
from torch import nn

import lwcc
import lwcc_torch as hvd
from lwcc_torch import elastic


def adasum(terms: list[torch.Tensor]) -> torch.Tensor:
    """The definition, in double: a binary tree over neighbours."""
    terms = [t.double() for t in terms]
    while len(terms) > 1:
        pairs = zip(terms[::2], terms[1::2])
        odd = terms[-1:] if len(terms) % 2 else []
        terms = [a * (1 - (a * b).sum() / (2 * (a * a).sum())) + b * (1 - (a * b).sum() / (2 * (b * b).sum()))
                 for a, b in pairs] + odd  # fmt: skip
    return terms[0]


def case_adasum_is_its_definition(rank: int, size: int) -> None:
    makers = [torch.Generator().manual_seed(100 + r) for r in range(size)]
    for dtype, tolerance in (
        (torch.float32, 1e-5),
        (torch.float64, 1e-12),
        (torch.float16, 4e-3),
        (torch.bfloat16, 3e-2),
    ):
        for shape in ((7, 11), (), (2,), (30_001,), (0, 3)):
            terms = [torch.randn(shape, generator=g).to(dtype) for g in makers]
            got = hvd.allreduce(terms[rank], op=hvd.Adasum, name=f"adasum.{dtype}.{shape}")
            if got.numel():
                torch.testing.assert_close(got.double(), adasum(terms), rtol=tolerance, atol=tolerance)
            assert got.dtype is dtype and got.shape == torch.Size(shape)
            same_everywhere([got])
    parallel = hvd.allreduce(torch.full((5,), 2.0), op=hvd.Adasum)
    torch.testing.assert_close(parallel, torch.full((5,), 2.0))
    across = torch.zeros(size)
    across[rank] = rank + 1.0
    assert hvd.allreduce(across, op=hvd.Adasum).tolist() == [r + 1.0 for r in range(size)]
    assert hvd.allreduce(torch.zeros(3), op=hvd.Adasum).tolist() == [0.0] * 3
    many = hvd.grouped_allreduce([across, torch.full((5,), 2.0)], op=hvd.Adasum, postscale_factor=2.0)
    assert many[0].tolist() == [2.0 * r + 2 for r in range(size)]
    torch.testing.assert_close(many[1], torch.full((5,), 4.0))
    raises(ValueError, "Adasum int64", lambda: hvd.allreduce(torch.ones(3, dtype=torch.int64), op=hvd.Adasum))
    if rank < size - 1:
        joined = hvd.allreduce(across, op=hvd.Adasum, name="joined")
        assert joined.tolist() == [r + 1.0 if r < size - 1 else 0.0 for r in range(size)]
    hvd.join()


def case_the_adasum_optimizer_sums_steps(rank: int, size: int) -> None:
    torch.manual_seed(3)
    model = nn.Linear(4, 2)
    start = [p.detach().clone() for p in model.parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), op=hvd.Adasum)
    assert isinstance(optimizer, torch.optim.SGD)
    makers = [torch.Generator().manual_seed(r) for r in range(size)]
    batches = [torch.randn(6, 4, generator=g) for g in makers]
    steps: list[list[torch.Tensor]] = []
    for x in batches:
        alone = copy.deepcopy(model)
        alone(x).square().mean().backward()
        steps.append([-0.5 * p.grad for p in alone.parameters() if p.grad is not None])
    optimizer.zero_grad()
    model(batches[rank]).square().mean().backward()
    optimizer.step()
    for i, p in enumerate(model.parameters()):
        torch.testing.assert_close(
            p.detach().double(), start[i].double() + adasum([s[i] for s in steps]), rtol=1e-4, atol=1e-5
        )
    same_everywhere(model.parameters())
    raises(AssertionError, "skip_synchronize Adasum", lambda: optimizer.skip_synchronize().__enter__())
    raises(RuntimeError, "copy", copy.deepcopy(optimizer).step)
    if size > 1:
        before = [p.detach().clone() for p in model.parameters()]
        packing = hvd.Compression.fp16 if rank == 0 else hvd.Compression.none
        other = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), op=hvd.Adasum, compression=packing
        )
        raises(hvd.Mismatch, "float16 float32", other.step)
        assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before))


def case_sync_batch_norm_is_that_of_the_whole_batch(rank: int, size: int) -> None:
    for shape in ((3,), (3, 5), (3, 4, 4)):
        counts = [r + 1 for r in range(size)]
        whole = torch.randn(sum(counts), *shape, dtype=torch.float64) * 3 + 1000
        weights = torch.randn(sum(counts), *shape, dtype=torch.float64)
        begin = sum(counts[:rank])
        mine = whole[begin : begin + counts[rank]].clone().requires_grad_()
        everything = whole.clone().requires_grad_()
        kind = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d}[len(shape)]
        plain, layer = kind(3).double(), hvd.SyncBatchNorm(3).double()
        if sum(counts) == 1 and len(shape) == 1:
            continue  # torch refuses a single value per channel
        expected = plain(everything)
        (expected * weights).sum().backward()
        got = layer(mine)
        (got * weights[begin : begin + counts[rank]]).sum().backward()
        part = slice(begin, begin + counts[rank])
        torch.testing.assert_close(got, expected[part], rtol=1e-9, atol=1e-9)
        assert mine.grad is not None and everything.grad is not None
        torch.testing.assert_close(mine.grad, everything.grad[part], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(layer.running_mean, plain.running_mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(layer.running_var, plain.running_var, rtol=1e-9, atol=1e-9)
        for mine_p, whole_p in zip(layer.parameters(), plain.parameters()):
            torch.testing.assert_close(hvd.allreduce(mine_p.grad, op=hvd.Sum), whole_p.grad, rtol=1e-8, atol=1e-8)
        layer.eval(), plain.eval()
        torch.testing.assert_close(layer(mine), plain(whole)[part], rtol=1e-9, atol=1e-9)
    raises(ValueError, "dimensions", lambda: hvd.SyncBatchNorm(3)(torch.ones(3)))


def case_a_sparse_handle_is_also_a_function(rank: int, size: int) -> None:
    mine = torch.sparse_coo_tensor([[0, rank]], [1.0, 2.0], (size + 1,), check_invariants=True)
    first = hvd.sparse_allreduce_async(mine, name="one", op=hvd.Sum)
    second = hvd.sparse_allreduce_async(mine, name="two", op=hvd.Average)
    assert isinstance(first, int)
    expected = torch.full((size + 1,), 2.0)
    expected[0], expected[-1] = size + 2.0, 0.0
    assert torch.equal(second().to_dense() * size, expected) and torch.equal(
        hvd.synchronize(first).to_dense(), expected
    )
    raises(ValueError, "handle", first)
    assert hvd.allreduce(torch.ones(2)).tolist() == [1.0, 1.0]


class Stalled(hvd.Timeout):
    """Stands for a request that all ranks gave up."""


def case_elastic_goes_back_to_the_last_commit(rank: int, size: int) -> None:
    torch.manual_seed(rank)
    model = nn.Linear(3, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.1))
    sampler = elastic.ElasticSampler(list(range(20)), shuffle=True, seed=4)
    state = elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, seen=[])
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(state.epoch)])
    failures = iter([False, False, True, False, False, False])
    committed: list[Any] = []

    @elastic.run
    def train(state: Any) -> str:
        same_everywhere(model.parameters())
        while state.epoch < 4:
            optimizer.zero_grad()
            model(torch.full((2, 3), float(rank + state.epoch))).sum().backward()
            optimizer.step()
            state.seen.append(state.epoch)
            sampler.record_batch(0, 1)
            if next(failures):
                raise Stalled("given up")
            state.epoch += 1
            committed[:] = [copy.deepcopy(model.state_dict()), list(state.seen)]
            state.commit()
        return "trained"

    assert train(state) == "trained"
    assert state.seen == [0, 1, 2, 3] == committed[1] and resets == [2]
    same_everywhere(model.parameters())
    assert len(hvd.allgather_object(1)) == size

    @elastic.run
    def hopeless(state: Any) -> None:
        state.epoch += 100
        raise Stalled("again")

    raises(Stalled, "again", lambda: hopeless(state))
    assert state.epoch == 4

    @elastic.run
    def wrong(state: Any) -> None:
        hvd.allreduce(torch.ones(2 + rank), name="wrong")

    if size > 1:
        raises(hvd.Mismatch, "wrong", lambda: wrong(state))


def case_elastic_sampler_leaves_out_what_was_processed(rank: int, size: int) -> None:
    sampler = elastic.ElasticSampler(list(range(23)), seed=1)
    dealt = hvd.allgather_object(list(sampler))
    assert {i for part in dealt for i in part} == set(range(23)) and len({len(part) for part in dealt}) == 1
    sampler.record_batch(0, 2)
    sampler.record_batch(1, 2)
    done = {i for part in hvd.allgather_object(sorted(sampler.processed_indices)) for i in part}
    state = elastic.TorchState(sampler=sampler)
    state.sync()
    rest = {i for part in hvd.allgather_object(list(sampler)) for i in part}
    assert sampler.processed_indices == done and rest == set(range(23)) - done
    resumed = elastic.ElasticSampler(list(range(23)), seed=1)
    resumed.load_state_dict(sampler.state_dict())
    assert list(resumed) == list(sampler)
    sampler.set_epoch(1)
    assert not sampler.processed_indices and list(sampler) != dealt[rank]


def events_of(path: Path) -> list[dict[str, Any]]:
    """Read a timeline whole: its writers hold the lock while they write, and a reader sees a page at a time."""
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        found: list[dict[str, Any]] = json.load(file)
    return found


def case_the_timeline_is_whole_json_at_any_moment(rank: int, size: int) -> None:
    path = Path(hvd.broadcast_object(tempfile.mkdtemp() if rank == 0 else None, 0)) / 'time "line".json'
    hvd.start_timeline(str(path), mark_cycles=True)
    for i in range(5):
        hvd.allreduce(torch.ones(4), name=f'tensor "{i}"\\')
        events = events_of(path)
        assert any(e["pid"] == rank and e["name"] == f'tensor "{i}"\\' and e["ph"] == "X" for e in events)
    hvd.barrier()
    events = events_of(path)
    assert {e["pid"] for e in events} == set(range(size))
    assert {e["ph"] for e in events} == {"M", "X", "b", "e", "i"}
    for r in range(size):
        runs = [e for e in events if e["pid"] == r and e["ph"] == "X"]
        assert all(a["ts"] + a["dur"] <= b["ts"] + 0.01 for a, b in zip(runs, runs[1:])), runs
    hvd.stop_timeline()
    hvd.stop_timeline()
    hvd.barrier()
    before = path.read_text()
    hvd.allreduce(torch.ones(4))
    hvd.barrier()
    assert path.read_text() == before
    raises(ValueError, "timeline write", lambda: hvd.start_timeline("/nowhere/at/all.json"))


def case_memory_is_flat_for_unnamed_collectives(rank: int, size: int) -> None:
    """LEAK_STEPS=20000 runs it in full; the time of a step is printed, as it depends on what else the machine does."""
    many = int(os.environ.get("LEAK_STEPS", "1500"))
    times = array.array("d")

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    def steps(n: int) -> None:
        tensor = torch.ones(64)
        for _ in range(n):
            began = time.perf_counter()
            hvd.allreduce(tensor)
            hvd.allgather(tensor[:1])
            times.append(time.perf_counter() - began)

    warm = max(many, 2500)  # the names of the last some thousand calls are kept
    steps(warm)
    before = resident()
    steps(many)
    if rank == 0:
        third = len(times) // 3
        ratio = statistics.median(times[-third:]) / statistics.median(times[:third])
        grown = (resident() - before) >> 10
        print(f"{warm + many} steps: {grown} KiB more, a late step takes {ratio:.3f} of an early one")
    assert resident() - before < 2 << 20, f"{resident() - before} bytes more"


def case_arguments_are_refused_in_words(rank: int, size: int) -> None:
    def wrap(*arguments: Any, **options: Any) -> Any:
        plain = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        return lambda: hvd.DistributedOptimizer(plain, *arguments, **options)

    x = torch.ones(size)
    ranks: Any = [0]
    for kind, words, action in (
        (TypeError, "sparse COO torch.strided", lambda: hvd.sparse_allreduce_async(x, name="s")),
        (TypeError, "sparse_csr", lambda: hvd.sparse_allreduce_async(torch.eye(3).to_sparse_csr(), name="s")),
        (ValueError, "one dimension", lambda: hvd.alltoall(torch.tensor(1.0), splits=[1])),
        (TypeError, "splits=1.0 int", lambda: hvd.alltoall(x, splits=[1.0] * size)),
        (TypeError, "compression='fp16' Compression.none", lambda: hvd.allreduce(x, compression="fp16")),
        (ValueError, "op=77 Average", lambda: hvd.allreduce(x, op=77)),
        (ValueError, "op=77 Average", lambda: hvd.reducescatter(x, op=77)),
        (TypeError, "op=1.0 int", lambda: hvd.allreduce(x, op=1.0)),
        (TypeError, "broadcast_parameters int", lambda: hvd.broadcast_parameters(3, 0)),
        (TypeError, "root_rank=0.0", lambda: hvd.broadcast_parameters([x], 0.0)),
        (TypeError, "process_set=[0]", wrap(process_set=ranks)),
        (ValueError, "groups=2.5", wrap(groups=2.5)),
        (ValueError, "groups='x'", wrap(groups="x")),
        (ValueError, "no parameter", wrap(groups=[[torch.ones(2)]])),
        (ValueError, "op=77", wrap(op=77)),
        (ValueError, "gradient_predivide_factor=0", wrap(gradient_predivide_factor=0)),
    ):
        raises(kind, words, action)
    positional = hvd.allreduce(x, None, None, hvd.Compression.none, hvd.Sum, 2.0, 0.5, hvd.global_process_set)
    assert positional.tolist() == [float(size)] * size
    assert hvd.allreduce_(x.clone(), None, None, hvd.Sum, 2.0, 1.0)[0] == 2.0 * size
    wrap(None, hvd.Compression.none, 1, hvd.Average, 2.0, 0, None, True, hvd.global_process_set)()


def case_disagreeing_process_sets_say_who_wants_which(rank: int, size: int) -> None:
    if size > 1:
        wish = [0] if rank == 0 else [size - 1]
        others = "rank 1 asks" if size == 2 else "rank 1, 2 ask"
        raises(hvd.Mismatch, f"rank 0 asks for [0]; {others} for [{size - 1}]", lambda: hvd.add_process_set(wish))
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist() == [size]


def case_a_root_of_another_type_is_refused_also_when_it_equals_a_known_one(rank: int, size: int) -> None:
    for turn in range(2):
        for wrong in (0.0, False, None):
            raises(TypeError, "root_rank", lambda w=wrong: hvd.broadcast(torch.ones(2), w))
            raises(TypeError, "root_rank", lambda w=wrong: hvd.broadcast_(torch.ones(2), w))
            raises(TypeError, "root_rank", lambda w=wrong: lwcc.broadcast(torch.ones(2).numpy(), w))
        assert hvd.broadcast(torch.full((2,), float(rank)), 0, name=f"turn{turn}").tolist() == [0.0, 0.0]
        assert lwcc.broadcast(torch.full((2,), rank).numpy(), 0).tolist() == [0, 0]
        assert hvd.broadcast(torch.ones(1), torch.tensor(0)).tolist() == [1.0]


if __name__ == "__main__":
    run(globals())
