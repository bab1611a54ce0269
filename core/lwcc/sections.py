"""What sections of a report consist of, and how figures are said in all of them."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from lwcc import charts

Rows = list[list[str]]  # the first one holds the heads

BUSY = 0.3  # of the cores: a load before the benchmark that it warns of
# As lwccrun describes a network that it has made: what was asked for, and how it was done.
_NETWORK = re.compile(r"network of namespaces: (.*?)(?: \(tbf|, delay and loss by|, congestion control|$)")


class Section(NamedTuple):
    """What belongs together: tables with their titles, and charts by the names of their files."""

    title: str
    about: str
    command: str
    tables: list[tuple[str, Rows]]
    pictures: list[tuple[str, charts.Chart]]
    warnings: Sequence[str] = ()


def seconds(value: float) -> str:
    """A time as people read it."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def network(record: dict[str, Any]) -> str:
    """The end of a title: on which network; "" for none."""
    net = record.get("net")
    of_nodes = _NETWORK.match(net or "")
    if of_nodes:
        return f", network of {of_nodes[1]}"
    return f", network {'unshaped' if net == 'none' else net}" if net else ""


def where(record: dict[str, Any]) -> str:
    """The machine, the versions, when, and a network in full."""
    parts = [record["machine"], f"LWCC {record['lwcc_version']}" if record.get("lwcc_version") else ""]
    parts += [record.get("mpi", ""), record.get("started", "")]
    parts.append(record["net"] if _NETWORK.match(record.get("net") or "") else "")
    return ", ".join(part for part in parts if part)


def warnings(record: dict[str, Any]) -> list[str]:
    """What was wrong with the machine, of which lwcc bench and lwccrun have warned as well."""
    counted, load, found = re.search(r"(\d+) cores?\b", record["machine"]), record.get("load", 0.0), []
    cores = int(counted[1]) if counted else 0
    if 0 < cores < record["np"]:
        found.append(f"{record['np']} ranks shared {cores} cores: these figures tell little about other machines")
    if cores and load > BUSY * cores:
        found.append(f"other work was on this machine (load {load:.1f}): the figures compare little")
    return found


def middle(values: Sequence[Any]) -> Optional[float]:
    """The median of what is known."""
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None
