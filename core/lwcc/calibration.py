"""Finding the simulator's costs: those with which it comes nearest to what was measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Optional

import numpy as np

from lwcc import simulating
from lwcc.authoring import find
from lwcc.fabric import Costs, Network

FITTED = ("latency_s", "send_s", "recv_s", "switch_s", "start_s", "send_s_per_byte", "recv_s_per_byte",
          "add_s_per_byte", "copy_s_per_byte", "spill")  # fmt: skip
USUAL = Costs(
    latency_s=2e-6, port_s_per_byte=0.0, send_s=6e-6, send_s_per_byte=0.2e-9, recv_s=3e-6, recv_s_per_byte=0.15e-9,
    add_s_per_byte=0.15e-9, copy_s_per_byte=0.1e-9, switch_s=4e-6, start_s=3e-6,
    spill=0.6,
)  # fmt: skip
_FAR = 2.0  # of the logarithms: costs beyond are no machine's, but another program's work
_TURNS, _STEP, _PULL, _DOUBT = 12, 0.08, 0.03, 0.15


class Seen(NamedTuple):
    """A measurement: seconds of a collective by an algorithm, of so many bytes."""

    collective: str
    algorithm: str
    nbytes: int
    seconds: float


def series(ranks: int, most: int = 1 << 20) -> list[tuple[str, tuple[str, ...], list[int]]]:
    """Return what to measure: (collective, algorithms, payloads in bytes), none of them an allreduce.

    most: bytes of a block at most, for slow links.
    """
    blocks = [n for n in (4, 1 << 10, 16 << 10, 256 << 10, 1 << 20) if n <= most]
    whole = [n * ranks for n in blocks]
    return [
        ("barrier", ("dissemination",), [4]), ("allgather", ("ring", "bruck"), whole),
        ("alltoall", ("pairwise",), whole[:3]), ("reducescatter", ("ring", "circulant"), whole),
        ("broadcast", ("binomial",), blocks),
    ]  # fmt: skip


def fit(seen: Sequence[Seen], network: Network, start: Costs = USUAL) -> tuple[Costs, float]:
    """Return costs, and the median relative error that is left.

    By Gauss and Newton on the logarithms, so that relative errors count; large ones count less (they may be another
    program's), and what the measurements say nothing about stays near `start`.
    """
    logs = first = np.log([getattr(start, name) for name in FITTED])
    errors = _errors(seen, network, _costs(start, logs))
    for _ in range(_TURNS):
        slopes = np.stack([(_errors(seen, network, _costs(start, logs + step)) - errors) / _STEP
                           for step in np.eye(len(FITTED)) * _STEP], 1)  # fmt: skip
        weights = 1 / np.maximum(1, np.abs(errors) / _DOUBT)
        left = slopes.T * weights @ slopes + np.eye(len(FITTED)) * _PULL * len(seen) / 10
        right = -(slopes.T * weights @ errors) - _PULL * len(seen) / 10 * (logs - first)
        better = _search(seen, network, start, (logs, np.clip(np.linalg.solve(left, right), -1, 1), first))
        if better is None:
            break
        logs, errors = better
    return _costs(start, logs), statistics.median(abs(math.expm1(e)) for e in errors)


def _search(
    seen: Sequence[Seen], network: Network, start: Costs, way: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> Optional[tuple[np.ndarray, np.ndarray]]:
    """Go as far along the way as it gets better."""
    logs, step, first = way

    def loss(at: np.ndarray, errors: np.ndarray) -> float:
        size = np.abs(errors)
        robust = np.where(size < _DOUBT, size**2, 2 * _DOUBT * size - _DOUBT**2)
        return float(robust.sum() + _PULL * len(seen) / 10 * ((at - first) ** 2).sum())

    before = loss(logs, _errors(seen, network, _costs(start, logs)))
    for share in (1.0, 0.5, 0.25, 0.1):
        at = np.clip(logs + share * step, first - _FAR, first + _FAR)
        errors = _errors(seen, network, _costs(start, at))
        if loss(at, errors) < before * (1 - 1e-3):
            return at, errors
    return None


def _costs(start: Costs, logs: np.ndarray) -> Costs:
    return replace(start, **{name: float(math.exp(value)) for name, value in zip(FITTED, logs)})


def _errors(seen: Sequence[Seen], network: Network, costs: Costs) -> np.ndarray:
    """The logarithm of predicted over measured."""
    return np.array([
        math.log(simulating.run(find(s.algorithm, s.collective), s.nbytes, network, costs).seconds / s.seconds)
        for s in seen
    ])  # fmt: skip
