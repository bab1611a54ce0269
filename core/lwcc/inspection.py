"""Looking at algorithms, plans and counters."""

from __future__ import annotations

from typing import Any

from lwcc import context, ops
from lwcc._native import ffi, lib


def algorithms(collective: str) -> dict[str, str]:
    """Return name -> one line about it (rounds, bytes, ranks, source) for a collective, as "allreduce".

    Raises:
        ValueError: no such collective.
    """
    number = ops.collective_number(collective)
    found = {}
    for index in range(lib.lwcc_algorithm_count(number)):
        name = lib.lwcc_algorithm_name(number, index)
        about = lib.lwcc_algorithm_about(number, name)
        found[_text(name)] = _text(about)
    return found


def plan_text(collective: str, name: str, rank: int, size: int) -> str:
    """Return the text picture of what one rank of `size` does.

    Raises:
        ValueError: unknown names or numbers.
        Unsupported: the algorithm does not serve that many ranks.
    """
    number = ops.collective_number(collective)
    length = lib.lwcc_algorithm_print(number, name.encode(), rank, size, ffi.NULL, 0)
    if length < 0:
        raise context.failure(length)
    out = ffi.new("char[]", length + 1)
    lib.lwcc_algorithm_print(number, name.encode(), rank, size, out, length + 1)
    return _text(out)


def plan_bytes(collective: str, name: str, rank: int, size: int) -> bytes:
    """Return one rank's plan as bytes (`lwcc.plan.Plan.decode`); raises as `plan_text`."""
    number = ops.collective_number(collective)
    length = lib.lwcc_algorithm_encode(number, name.encode(), rank, size, ffi.NULL, 0)
    if length < 0:
        raise context.failure(length)
    out = ffi.new("uint8_t[]", length)
    lib.lwcc_algorithm_encode(number, name.encode(), rank, size, out, length)
    return bytes(ffi.buffer(out))


def verify(collective: str, name: str, size: int) -> None:
    """Prove that the algorithm is right for `size` ranks.

    Raises:
        PlanRefused: it is not; the text names rank, step and chunk.
        Unsupported: it does not serve that many ranks.
        ValueError: unknown names or numbers.
    """
    status = lib.lwcc_algorithm_verify(ops.collective_number(collective), name.encode(), size)
    if status < 0:
        raise context.failure(status)


def stats() -> dict[str, Any]:
    """Return the counters since init (see lwcc_stats in lwcc.h): requests, cache_hits, fused, bytes, busy_ns, ...

    All are whole numbers, but `allreduces`: a list of counts, where [k] counts those of 2^(k-1) < bytes <= 2^k.

    Raises:
        ShutDown: not initialised.
    """
    out = ffi.new("lwcc_stats *")
    status = lib.lwcc_get_stats(out)
    if status < 0:
        raise context.failure(status)
    found = {name: getattr(out, name) for name, _ in ffi.typeof("lwcc_stats").fields}
    return {name: value if isinstance(value, int) else [int(n) for n in value] for name, value in found.items()}


def version() -> str:
    """Return the version of the native core."""
    return _text(lib.lwcc_version())


def ucx() -> tuple[str, str, list[str]]:
    """Return the path of the UCX library that `LWCC_TRANSPORT=ucx` would use, its version, and what it can use here, as
    "tcp/eth0". The library stays loaded.

    Raises:
        Unsupported: there is none that can be used; the text says what was tried and what to do.
    """
    out = ffi.new("char[]", 1 << 16)
    length = lib.lwcc_ucx_describe(out, 1 << 16)
    if length < 0:
        raise context.failure(length)
    path, version, *account = _text(out).splitlines()
    return path, version, [line.split()[-1] for line in account if " resource " in line]


def _text(pointer: object) -> str:
    return "" if pointer == ffi.NULL else str(ffi.string(pointer).decode("utf-8", "replace"))


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Write what every request of this rank does, and when, to a file that opens in Perfetto or chrome://tracing.

    All ranks of a host share the file, which is whole JSON at any moment; one process of the picture is one rank. A
    file of another job is overwritten. LWCC_TIMELINE=file starts one at `init`.

    Args:
        file_path: where to; a timeline that is being written elsewhere ends.
        mark_cycles: mark also the beginning of each collective.

    Raises:
        ValueError: the file cannot be written.
        ShutDown: not initialised.
    """
    status = lib.lwcc_timeline_start(str(file_path).encode(), int(mark_cycles))
    if status < 0:
        raise context.failure(status)


def stop_timeline() -> None:
    """End the timeline of this rank; nothing happens if there is none.

    Raises:
        ShutDown: not initialised.
    """
    status = lib.lwcc_timeline_stop()
    if status < 0:
        raise context.failure(status)
