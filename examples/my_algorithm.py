"""An allreduce of one's own: a ring in Python.

lwcc check examples/my_algorithm.py:my_ring
lwcc plan examples/my_algorithm.py:my_ring -p 4
lwccrun -np 4 --algorithm examples/my_algorithm.py:my_ring train.py
"""

import lwcc


@lwcc.algorithm("allreduce")
def my_ring(plan: lwcc.Plan, rank: int, size: int) -> None:
    """My ring: 2(p-1) rounds, 2(p-1)/p n sent."""
    after, before = (rank + 1) % size, (rank - 1) % size
    for k in plan.rounds(size - 1):  # chunks go around once to be summed ...
        plan.send(after, chunk=rank - k)
        plan.recv_reduce(before, chunk=rank - k - 1)
    for k in plan.rounds(size - 1):  # ... and once to be handed out
        plan.send(after, chunk=rank + 1 - k)
        plan.recv_copy(before, chunk=rank - k)
