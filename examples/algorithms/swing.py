"""Swing allreduce (De Sensi et al., NSDI 2024): halving-doubling whose partners swing to both sides, at short hops."""

import lwcc


@lwcc.algorithm("allreduce", chunks=lambda size: 1 << (size.bit_length() - 1))
def swing(plan: lwcc.Plan, rank: int, size: int) -> None:
    """Swing: 2 log2 p rounds (+2 if p is no power of two), 2(p-1)/p n sent, short hops on a ring or torus."""
    core = plan.chunks
    turns = core.bit_length() - 1

    def partner(r: int, turn: int) -> int:
        return (r + (-1) ** r * (1 - (-2) ** (turn + 1)) // 3) % core

    def reach(r: int, turn: int) -> list[int]:  # the chunks that r still sums after this turn
        return [r] if turn == turns else sorted(reach(r, turn + 1) + reach(partner(r, turn), turn + 1))

    if rank >= core:  # a guest: its terms go in, the result comes back
        plan.send(rank - core, 0, core)
        plan.end_round()
        plan.recv_copy(rank - core, 0, core)
        return
    if rank + core < size:
        plan.recv_reduce(rank + core, 0, core)
    plan.end_round()
    for k in plan.rounds(2 * turns):
        turn = min(k, 2 * turns - 1 - k)
        mine, theirs = reach(rank, turn + 1), reach(partner(rank, turn), turn + 1)
        for chunk in theirs if k < turns else mine:
            plan.send(partner(rank, turn), chunk)
        for chunk in mine if k < turns else theirs:
            (plan.recv_reduce if k < turns else plan.recv_copy)(partner(rank, turn), chunk)
    if rank + core < size:
        plan.send(rank + core, 0, core)
