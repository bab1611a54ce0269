from __future__ import annotations

import pytest

from lwcc import errors
from lwcc._native import ffi, lib


def statuses() -> dict[str, int]:
    return {n: c for n, c in ffi.typeof("lwcc_status").relements.items() if c < 0}


def test_every_status_of_the_header_has_its_exception() -> None:
    for name, code in statuses().items():
        word = ffi.string(lib.lwcc_status_name(code)).decode()
        error = errors.from_status(word, code, "who, what")
        assert str(error) == "who, what"
        if code == lib.LWCC_ERR_INVALID:
            assert type(error) is ValueError
            continue
        assert isinstance(error, errors.LwccError)
        assert type(error) is not errors.LwccError, name
        assert error.code == code
        assert name == f"LWCC_ERR_{error.status}"


def test_exceptions_are_what_callers_expect() -> None:
    assert issubclass(errors.LwccError, RuntimeError)
    assert issubclass(errors.Timeout, TimeoutError)
    assert issubclass(errors.Unsupported, NotImplementedError)


def test_peer_lost_names_the_rank() -> None:
    error = errors.from_status("PEER_LOST", -3, "rank 2 is dead", 2)
    assert isinstance(error, errors.PeerLost)
    assert error.rank == 2


def test_an_unknown_status_is_still_an_lwcc_error() -> None:
    error = errors.from_status("NEW", -99, "text")
    assert type(error) is errors.LwccError
    with pytest.raises(errors.LwccError, match="text"):
        raise error
