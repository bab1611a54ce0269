"""Exceptions, one for each thing that a caller can do about a failure.

All carry `.code` (the number in lwcc.h) and `.status` (its name). A wrong argument of one's own call is a plain
`ValueError`, raised by the call itself; nothing was submitted then.
"""

from __future__ import annotations

from typing import Optional


class LwccError(RuntimeError):
    """A collective or the job failed.

    Attributes:
        code: the number of the status in lwcc.h, negative.
        status: the name of the status, as "PEER_LOST".
    """

    code: int = 0
    status: str = "ERROR"

    def __init__(self, text: str, code: Optional[int] = None) -> None:
        super().__init__(text)
        if code is not None:
            self.code = code


class Mismatch(LwccError):
    """The ranks disagree about a tensor. Raised on every rank; the job can go on."""

    status = "MISMATCH"


class PeerLost(LwccError):
    """A rank died. Every pending and later call fails so.

    Attributes:
        rank: the first rank found dead, or -1 if unknown.
    """

    status = "PEER_LOST"
    rank: int = -1

    def __init__(self, text: str, code: Optional[int] = None, rank: int = -1) -> None:
        super().__init__(text, code)
        self.rank = rank


class Timeout(LwccError, TimeoutError):
    """A wait reached its limit (the request goes on), or a request stalled past the abort limit (it has failed)."""

    status = "TIMEOUT"


class ShutDown(LwccError):
    """Not initialised, shut down already, or a peer has left in good order."""

    status = "SHUTDOWN"


class SystemFailure(LwccError):
    """The operating system refused memory, a descriptor or a socket."""

    status = "SYSTEM"


class ProtocolFailure(LwccError):
    """A peer sent bytes that no healthy peer sends."""

    status = "PROTOCOL"


class Unsupported(LwccError, NotImplementedError):
    """Valid, but not available for this type, size or build."""

    status = "UNSUPPORTED"


class PlanRefused(LwccError):
    """A plan was refused; the text names rank, step and chunk."""

    status = "PLAN"


class HostsUpdatedInterrupt(RuntimeError):
    """Hosts have come or gone, in elastic training. Part of Horovod's interface; a fixed set of ranks never raises it.

    Attributes:
        skip_sync: whether the state of the ranks needs no synchronising.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("lwcc: the hosts of the job have changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """Built for another version of a framework. Part of Horovod's interface; never raised, as nothing is built so."""


_BY_STATUS: dict[str, type[LwccError]] = {
    cls.status: cls
    for cls in (Mismatch, PeerLost, Timeout, ShutDown, SystemFailure, ProtocolFailure, Unsupported, PlanRefused)
}


def from_status(status: str, code: int, text: str, lost_rank: int = -1) -> Exception:
    """Return the exception for a failed call.

    Args:
        status: name of the status, as lwcc_status_name gives it ("INVALID", "PEER_LOST", ...).
        code: its number.
        text: what lwcc_error said; becomes the exception's text unchanged.
        lost_rank: the first dead rank, used by PeerLost only.
    """
    name = status.replace("LWCC_ERR_", "")
    if name == "INVALID":
        return ValueError(text)
    cls = _BY_STATUS.get(name, LwccError)
    if cls is PeerLost:
        return PeerLost(text, code, lost_rank)
    return cls(text, code)
