"""Ring allreduce (Patarasuk and Yuan 2009): chunks go around once to be summed, once to be handed out."""

import lwcc


@lwcc.algorithm("allreduce")
def ring(plan: lwcc.Plan, rank: int, size: int) -> None:
    """Ring: 2(p-1) rounds, 2(p-1)/p n sent."""
    after, before = (rank + 1) % size, (rank - 1) % size
    for k in plan.rounds(size - 1):
        plan.send(after, chunk=rank - k)
        plan.recv_reduce(before, chunk=rank - k - 1)
    for k in plan.rounds(size - 1):
        plan.send(after, chunk=rank + 1 - k)
        plan.recv_copy(before, chunk=rank - k)
