"""The same collectives over TCP and UCX: with our shared memory off, and with two nodes made of one host."""

from __future__ import annotations

from typing import Any

import pytest

WORK = """
for count in (0, 1, 1000, 300_001):
    for turn in range(3):
        a = np.arange(count, dtype=np.float64) + rank
        out = lwcc.allreduce(a, op=lwcc.Sum, name=f"a{count}")
        assert np.array_equal(out, np.arange(count) * size + size * (size - 1) / 2), (rank, count, turn)
for root in range(size):
    assert lwcc.broadcast(np.full(70_000, rank), root)[-1] == root
assert lwcc.allgather(np.full(rank, rank)).tolist() == [r for r in range(size) for _ in range(r)]
assert lwcc.alltoall(np.full((size, 2), rank)).tolist() == [[r, r] for r in range(size)]
assert lwcc.reducescatter(np.ones((size, 4)), op=lwcc.Sum).tolist() == [[size] * 4]
tickets = [lwcc.allreduce_async(np.full(5, i), op=lwcc.Sum, name=f"t{i}") for i in range(20)]
assert [t.wait()[0] for t in tickets] == [size * i for i in range(20)]
for count in (1, 1000, 100_000):
    assert (lwcc.raw.allreduce(np.ones(count, np.float32)) == size).all()
lwcc.raw.barrier()
print("shared", lwcc.stats()["shared_memory"])
"""


@pytest.mark.parametrize(("n", "wire"), [(2, "tcp"), (3, "tcp"), (5, "tcp"), (3, "ucx-tcp"), (3, "ucx-shm")])
def test_over_a_wire_alone(run_ranks: Any, wires: Any, n: int, wire: str) -> None:
    done = run_ranks(n, WORK, env=wires(wire))
    assert done.out.count("shared 0") == n


NODES = "import os\nos.environ['LWCC_NODE'] = 'node%d' % (int(os.environ['LWCC_RANK']) // {per})\n"
HEAD = "import numpy as np\nimport lwcc\nlwcc.init()\nrank, size = lwcc.rank(), lwcc.size()\n"


@pytest.mark.parametrize(("n", "per", "wire"), [(2, 1, "auto"), (4, 2, "auto"), (5, 2, "auto"), (4, 2, "shm+ucx")])
def test_two_nodes_on_one_host(run_ranks: Any, wires: Any, n: int, per: int, wire: str) -> None:
    ask = f"assert lwcc.local_size() == min({per}, size - rank // {per} * {per}), lwcc.local_size()\n"
    ask += f"assert lwcc.local_rank() == rank % {per}\n"
    run_ranks(n, NODES.format(per=per) + HEAD + ask + WORK, prelude=False, env=wires(wire))


TWO_LEVELS = """
for count in (1, 5, 1000, 300_001):
    a = np.arange(count, dtype=np.float64) + rank
    for out in (lwcc.allreduce(a, op=lwcc.Sum, name=f"a{count}"), lwcc.raw.allreduce(a)):
        assert np.array_equal(out, np.arange(count) * size + size * (size - 1) / 2), (rank, count)
pair = lwcc.add_process_set([0, size - 1])
if pair.included():
    assert lwcc.allreduce(np.ones(7), op=lwcc.Sum, process_set=pair)[0] == 2
"""


@pytest.mark.parametrize(("n", "per"), [(4, 2), (5, 3)])
def test_two_levels_over_nodes_of_any_size(run_ranks: Any, n: int, per: int) -> None:
    choice = {"LWCC_ALGORITHM": "allreduce=hierarchical@4000000,allreduce=ring"}
    run_ranks(n, NODES.format(per=per) + HEAD + TWO_LEVELS, prelude=False, env=choice)


@pytest.mark.parametrize("tuned", ["allreduce=fold@8,allreduce=ring", "allreduce=nonsense", "=,,allreduce"])
def test_a_table_of_lwcc_tune_is_obeyed_or_passed_over(run_ranks: Any, tuned: str) -> None:
    run_ranks(3, TWO_LEVELS, env={"LWCC_TRANSPORT": "tcp", "LWCC_TUNED": tuned})


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_the_same_bits_over_every_transport(run_ranks: Any, transport: str) -> None:
    run_ranks(
        3,
        """
a = np.random.default_rng([11, rank]).standard_normal(10_001).astype(np.float32)
out = lwcc.allreduce(a, op=lwcc.Sum)
every = lwcc.allgather(out.reshape(1, -1))
assert all(np.array_equal(every[0], row) for row in every)
exact = sum(np.random.default_rng([11, r]).standard_normal(10_001) for r in range(size))
assert np.allclose(out, exact, atol=1e-5)
""",
        env={"LWCC_TRANSPORT": transport},
    )


@pytest.mark.parametrize("wire", ["tcp", "auto", "ucx-tcp", "ucx-shm"])
def test_raw_calls_of_overlapping_sets_and_named_calls_side_by_side(run_ranks: Any, wires: Any, wire: str) -> None:
    """Each rank begins them in another order, so whoever drives must move all of them."""
    run_ranks(
        3,
        """
import random, threading
sets = [None, lwcc.add_process_set([0, 1]), lwcc.add_process_set([0, 2]), lwcc.add_process_set([1, 2])]
wrong = []

def raw(number):
    for i in range(25):
        out = lwcc.raw.allreduce(np.full([1, 1000, 60_000][i % 3], i, np.float32), process_set=sets[number])
        expected = i * (size if number == 0 else 2)
        if out[0] != expected or out[-1] != expected:
            wrong.append((number, i, out[0]))

def named(number):
    for i in range(25):
        if lwcc.allreduce(np.full(50, i), op=lwcc.Sum, name=f"n{number}")[0] != size * i:
            wrong.append(("named", number, i))

work = [(raw, k) for k in range(4) if k == 0 or sets[k].included()] + [(named, k) for k in range(8)]
random.Random(rank).shuffle(work)
threads = [threading.Thread(target=do, args=(number,)) for do, number in work]
for t in threads:
    t.start()
for t in threads:
    t.join()
assert not wrong, wrong
""",
        env=wires(wire),
    )
