"""`join`: a rank that is out of data lets the others go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from lwcc import context, naming, ops
from lwcc._native import ffi, lib
from lwcc.collectives import set_id

if TYPE_CHECKING:
    from lwcc.process_sets import ProcessSet


def join(*, process_set: Optional[ProcessSet] = None) -> int:
    """Say that this rank is out of data; return, when every rank of the set has said so, the rank that did last.

    Until then this rank takes part in what the others ask for with neutral elements: zeros for Sum and Average (which
    divides by the ranks that contribute), infinities for Min and Max, ones for Product, no rows for allgather and
    alltoall. Unnamed calls count anew on every rank after it. Raw collectives go on needing every rank.

    Args:
        process_set: the ranks that join; None: all.

    Raises:
        ValueError: this rank is no member, or another thread is joining already.
        LwccError: a rank died, or left without joining.
    """
    number, ticket = set_id(process_set), ffi.new("lwcc_ticket *")
    status = lib.lwcc_submit_join(number, ticket)
    if status < 0:
        raise context.failure(status)
    try:
        ops.wait(ticket[0])
        last = ops.result(ticket[0]).first_dim
    finally:
        lib.lwcc_release(ticket[0])
    naming.count_join(number)
    return last
