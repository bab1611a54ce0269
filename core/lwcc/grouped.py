"""Grouped allreduce: several arrays as one unit. They are reduced together, or all fail."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from lwcc import buffer, ops
from lwcc.collectives import set_id
from lwcc.ops import Average

if TYPE_CHECKING:
    from lwcc.authoring import Choice
    from lwcc.process_sets import ProcessSet


class GroupTicket:
    """The tickets of a group.

    Attributes:
        tickets: one for each array, in order.
    """

    def __init__(self, tickets: list[ops.Ticket]) -> None:
        self.tickets = tickets

    def done(self) -> bool:
        """Tell whether all are done."""
        return all(ticket.done() for ticket in self.tickets)

    def wait(self, timeout: Optional[float] = None) -> list[Any]:
        """Return the results in order; `timeout` in seconds is for each; raises as `lwcc.ops.wait`."""
        failure: Optional[Exception] = None
        values = []
        for ticket in self.tickets:
            try:
                values.append(ticket.wait(timeout))
            except (RuntimeError, ValueError) as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return values

    @property
    def result(self) -> list[Any]:
        """The results, waiting for them if need be."""
        return self.wait()


def _start(
    arrays: list[tuple[Any, Any, Any]], codes: list[int], name: Optional[str], rest: tuple[Any, ...]
) -> GroupTicket:
    """Submit one group of (source, target, value) triples; `rest` are a Request's fields from `op` on."""
    base = ops.unnamed(ops.ALLREDUCE, rest[2]) if name is None else name
    requests = []
    for i, ((source, target, _), code) in enumerate(zip(arrays, codes)):
        member = f"{base}[{i}]"
        pointers = buffer.address(source), buffer.address(target)
        requests.append(ops.Request(member, ops.ALLREDUCE, *pointers, source.shape, code, *rest))
    tickets = []
    for number, request, (source, target, value) in zip(ops.submit_group(requests), requests, arrays):
        tickets.append(ops.Ticket(number, request.name, (source, target), partial(_value, value)))
    return GroupTicket(tickets)


def _value(value: Any, ticket: int) -> Any:
    return value


def grouped_allreduce_async(
    arrays: Sequence[Any],
    *,
    name: Optional[str] = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Optional[ProcessSet] = None,
    dtype: Optional[str] = None,
    priority: int = 0,
    algorithm: Optional[Choice] = None,
) -> GroupTicket:
    """Start a `grouped_allreduce`; the ticket's result is the list of reduced arrays."""
    pairs = [buffer.source(array, dtype) for array in arrays]
    triples = [(source, out, out) for source, out in ((source, np.empty_like(source)) for source, _ in pairs)]
    scales = prescale_factor, postscale_factor
    rest = (op, 0, set_id(process_set), None, *scales, priority, algorithm)
    return _start(triples, [code for _, code in pairs], name, rest)


def grouped_allreduce_async_(
    arrays: Sequence[Any],
    *,
    name: Optional[str] = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Optional[ProcessSet] = None,
    dtype: Optional[str] = None,
    priority: int = 0,
    algorithm: Optional[Choice] = None,
) -> GroupTicket:
    """Start a `grouped_allreduce_`; the ticket's result is the list of the same arrays."""
    pairs = [buffer.target(array, dtype) for array in arrays]
    triples = [(target, target, array) for (target, _), array in zip(pairs, arrays)]
    scales = prescale_factor, postscale_factor
    rest = (op, 0, set_id(process_set), None, *scales, priority, algorithm)
    return _start(triples, [code for _, code in pairs], name, rest)


def grouped_allreduce(arrays: Sequence[Any], **keywords: Any) -> list[Any]:
    """Reduce several arrays as one unit; return the list of results.

    Args:
        arrays: each as for `allreduce`; they may differ in shape and element type.
        **keywords: as for `allreduce`; the members are named "<name>[<i>]".

    Raises:
        As `allreduce`; a failure of one is a failure of all.
    """
    return grouped_allreduce_async(arrays, **keywords).wait()


def grouped_allreduce_(arrays: Sequence[Any], **keywords: Any) -> list[Any]:
    """Reduce several arrays in place as one unit; else as `grouped_allreduce`."""
    return grouped_allreduce_async_(arrays, **keywords).wait()
