"""Circulant allreduce (Traff 2024): as few rounds and as few bytes as there can be, for any number of ranks."""

import lwcc


@lwcc.algorithm("allreduce")
def circulant(plan: lwcc.Plan, rank: int, size: int) -> None:
    """Circulant: 2 ceil(log2 p) rounds, 2(p-1)/p n sent."""
    spans = [size]
    while spans[-1] > 1:
        spans.append((spans[-1] + 1) // 2)
    for k in plan.rounds(len(spans) - 1):
        hop, count = spans[k + 1], spans[k] - spans[k + 1]
        plan.send((rank + hop) % size, chunk=rank + hop, count=count)
        plan.recv_reduce((rank - hop) % size, chunk=rank, count=count)
    for k in plan.rounds(len(spans) - 1):
        hop, count = spans[-1 - k], spans[-2 - k] - spans[-1 - k]
        plan.send((rank - hop) % size, chunk=rank, count=count)
        plan.recv_copy((rank + hop) % size, chunk=rank + hop, count=count)
