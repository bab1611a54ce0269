"""Two levels: sum within each node, then across the nodes (each local rank its own part), then back within the node."""

import lwcc


@lwcc.algorithm("allreduce")
def hierarchical(plan: lwcc.Plan, rank: int, size: int) -> None:
    """Two-level: reduce-scatter on the node, circulant across nodes, allgather on the node."""
    mates = plan.local_ranks()
    plan.require(all(len(plan.local_ranks(r)) == len(mates) for r in range(size)), "as many ranks on each node")
    place, each = plan.local_index(), size // len(mates)
    peers = [r for r in range(size) if plan.local_index(r) == place]
    plan.run("circulant", mates, collective="reducescatter")
    plan.run("circulant", peers, (place * each, each), collective="allreduce")
    plan.run("bruck", mates, collective="allgather")
