"""One rank of bench_simulate.py: times cases of raw collectives in turn, round after round; rank 0 prints rows as JSON.

simulate_rank.py '{"cases": [["allreduce", "ring", 1048576], ...], "rounds": 5, "budget_s": 0.05}'
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import numpy as np

from lwcc import bench_rank, context, raw

MOST, LEAST = 300, 2
BURSTS = 2 << 20  # bytes, of which a shaper's bursts are little
Case = tuple[str, str, int]


def ready(case: Case) -> tuple[bench_rank.Series, bench_rank.Case, int]:
    """Allocate the memory of a case."""
    series = bench_rank.Series(case[0], [case[2]], algorithms=[case[1]], in_place=True)
    memory = bench_rank.make(series, case[2])
    memory.given[...] = 0
    return series, memory, bench_rank.COLLECTIVES.index(case[0])


def once(case: Case, prepared: Any, iterations: int) -> Any:
    """Return the seconds of so many iterations, of the slowest rank."""
    raw.force_algorithm("broadcast" if case[0] == "p2p" else case[0], case[1] or None)
    return bench_rank._loop(*prepared, iterations)


def iterations_of(case: Case, prepared: Any, budget_s: float) -> int:
    """Return how many iterations a round gets; alike on all ranks, since the times are."""
    each = float(once(case, prepared, 3 if case[2] < 1 << 22 else 1).min())
    if each < 0.01:
        each = float(np.median(once(case, prepared, 10)))
    least = max(LEAST, BURSTS // case[2])
    return int(min(max(budget_s / max(each, 1e-9), least), MOST))


def main() -> int:
    """Run all cases; print a row for each."""
    series = json.loads(sys.argv[1])
    cases = [(str(c), str(a), int(n)) for c, a, n in series["cases"]]
    context.init()
    wrong = 0
    found: list[list[float]] = [[] for _ in cases]
    dice = random.Random(len(cases))  # alike on all ranks
    prepared = [ready(case) for case in cases]
    iterations = [iterations_of(case, p, series["budget_s"]) for case, p in zip(cases, prepared)]
    order = list(range(len(cases)))
    for _ in range(series["rounds"]):
        dice.shuffle(order)
        for i in order:
            seconds = once(cases[i], prepared[i], iterations[i])
            found[i].append(float(np.median(seconds[len(seconds) // 2 :])))  # by then a shaper has no burst left
    for case, p, times in zip(cases, prepared, found):
        raw.force_algorithm("broadcast" if case[0] == "p2p" else case[0], case[1] or None)
        wrong += bench_rank.wrong(*p) if case[2] <= 1 << 20 else 0
        if context.rank() == 0:
            print(json.dumps({"case": case, "t": float(np.median(times)), "rounds": times, "wrong": wrong}), flush=True)
    context.shutdown()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
