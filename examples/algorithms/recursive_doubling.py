"""Recursive doubling (Thakur, Rabenseifner, Gropp 2005): in each round two ranks swap all that they have."""

import lwcc


@lwcc.algorithm("allreduce", chunks=1)
def recursive_doubling(plan: lwcc.Plan, rank: int, size: int) -> None:
    """Recursive doubling: log2 p rounds (+2 if p is no power of two), n sent a round."""
    core = 1 << (size.bit_length() - 1)  # ranks from here on are guests of rank - core
    guest = rank + core if rank + core < size else None
    if rank >= core:
        plan.send(rank - core)
        plan.end_round()
        plan.recv_copy(rank - core)
        return
    if guest is not None:
        plan.recv_reduce(guest)
    plan.end_round()
    for k in plan.rounds(core.bit_length() - 1):
        plan.send(rank ^ 1 << k)
        plan.recv_reduce(rank ^ 1 << k)
    if guest is not None:
        plan.send(guest)
