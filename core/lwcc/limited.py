"""A command with a time limit, which gets the time to tidy up before it is killed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import NamedTuple, Optional

TIDY_S = 15.0  # from SIGTERM to SIGKILL: lwccrun ends its ranks within --grace, and takes down its network


class Ended(NamedTuple):
    """How a command ended; code None: it reached the limit."""

    code: Optional[int]
    out: str
    err: str


def run_limited(command: Sequence[str], seconds: float) -> Ended:
    """Run a command to its end, or for so long; what it has printed until then is returned in either case."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return Ended(None, *_end(process))
        except BaseException:  # Ctrl-C: nothing is left behind then either
            _end(process)
            raise
        return Ended(process.returncode, out, err)


def _end(process: subprocess.Popen[str]) -> tuple[str, str]:
    process.terminate()
    try:
        return process.communicate(timeout=TIDY_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()
