"""Names and settings of the engines that can carry the collectives."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field

ENGINES = ("own", "mpi", "gloo")
STARTERS = ("local", "ssh", "slurm")  # who starts the ranks


@dataclass(frozen=True)
class Settings:
    """One way to run an engine: arguments of its launcher, and variables of the ranks."""

    name: str
    arguments: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """As it is shown and stored."""
        parts = [*self.arguments, *(f"{k}={v}" for k, v in self.variables.items())]
        return " ".join(parts) if parts else "as it comes"


def engine_list(text: str) -> tuple[str, ...]:
    """Parse "mpi,gloo". Raises ArgumentTypeError."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in ENGINES[1:]:
            raise argparse.ArgumentTypeError(f"{name!r} is no baseline; known: {', '.join(ENGINES[1:])}")
    return names
