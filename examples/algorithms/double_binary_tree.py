"""Double binary tree (Sanders, Speck, Traff 2009): two trees, each for half of the buffer; a leaf of one works in the
other, so that all ranks send and receive about as much. Pipelined; times are common to all ranks, so nothing waits in
a circle."""

import lwcc

PIECES = 4  # of each half


@lwcc.algorithm("allreduce", chunks=2 * PIECES)
def double_binary_tree(plan: lwcc.Plan, rank: int, size: int) -> None:
    """Double binary tree: about 4 log2 p + 8 rounds, at most 2n sent, in 4 pieces for each tree."""
    over = [0] * size  # the parent of place x, in order; place 0 is the root
    for x in range(1, size):
        up = (x & (x - 1)) | ((x & -x) << 1)
        over[x] = up if up < size else x & (x - 1)
    depth = {0: 0}
    while len(depth) < size:
        depth.update({x: depth[over[x]] + 1 for x in range(1, size) if over[x] in depth})
    deepest, events = max(depth.values()), []
    for tree in (0, 1):
        places = range(size) if tree == 0 else range(size - 1, -1, -1) if size % 2 == 0 else [*range(1, size), 0]
        for x, piece in [(x, piece) for x in range(1, size) for piece in range(PIECES)]:
            child, parent, chunk = places[x], places[over[x]], tree * PIECES + piece
            rise = 2 * (piece + deepest - depth[x]) + (x > over[x])
            fall = 2 * (piece + deepest + depth[x] - 1) + (x > over[x])
            if rank == child:
                events += [(rise, chunk, plan.send, parent), (fall, chunk, plan.recv_copy, parent)]
            if rank == parent:
                events += [(rise, chunk, plan.recv_reduce, child), (fall, chunk, plan.send, child)]
    events.sort(key=lambda event: event[:2])
    for (time, chunk, verb, peer), after in zip(events, [*events[1:], None]):
        verb(peer, chunk)
        if after is None or after[0] != time:
            plan.end_round()
