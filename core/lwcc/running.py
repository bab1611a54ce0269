"""`run`: a function on several ranks, started from Python."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

from lwcc.pickling import pickled

_REFUSED = (
    *("min_num_proc", "max_num_proc", "min_np", "max_np", "slots", "reset_limit", "cooldown_range"),
    *("host_discovery_script", "ssh_port", "ssh_identity_file", "use_mpi", "mpi_args", "network_interfaces"),
    "executable",
)
_IGNORED = ("disable_cache", "use_gloo")  # what they ask for is how it is


class RunFailed(RuntimeError):
    """A rank of `run` failed.

    Attributes:
        rank: the first one that raised; -1 if none did, and one was killed, say.
        code: the launcher's exit code.
    """

    def __init__(self, text: str, rank: int, code: int) -> None:
        super().__init__(text)
        self.rank, self.code = rank, code


def run(
    func: Callable[..., Any], args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None,
    num_proc: Optional[int] = None, *, np: Optional[int] = None, hosts: Optional[str] = None,
    hostfile: Optional[str] = None, start_timeout: Optional[float] = None, output_filename: Optional[str] = None,
    verbose: Any = None, env: Optional[Mapping[str, str]] = None, timeout: Optional[float] = None, **others: Any,
) -> list[Any]:  # fmt: skip
    """Call `func(*args, **kwargs)` on every rank of a new job; return the results in rank order.

    The ranks are fresh processes, started by `lwccrun`, whose output they share; `func` calls `lwcc.init` itself. It
    travels by cloudpickle, so it may be a function of the script that calls this.

    Args:
        func: what each rank calls.
        args: its positional arguments.
        kwargs: its keyword arguments.
        num_proc: number of ranks; default 1.
        np: the same, shorter.
        hosts: as `lwccrun -H`; they share the current folder.
        hostfile: as `lwccrun --hostfile`.
        start_timeout: seconds within which every rank has to call init; default: no limit.
        output_filename: folder for each rank's output, as `lwccrun --output-filename`.
        verbose: have the launcher say what it does.
        env: variables for the ranks, in addition to this process's.
        timeout: seconds for the whole job; default: no limit.

    Raises:
        ValueError: an argument of Horovod's that means nothing here (elastic, ssh, MPI), num_proc below 1, or another
            number as np.
        TypeError: what cannot be pickled; no rank was started.
        RunFailed: a rank raised or died; the text has its traceback.
    """
    unknown = [name for name in others if name not in _IGNORED]
    if unknown:
        known = [name for name in unknown if name in _REFUSED]
        raise ValueError(f"lwcc.run: {', '.join(unknown)}: {'not supported here' if known else 'unknown'}")
    if np is not None and num_proc is not None and np != num_proc:
        raise ValueError(f"lwcc.run: np={np} and num_proc={num_proc}: give one of them")
    count = np if np is not None else num_proc if num_proc is not None else 1
    if count < 1:
        raise ValueError(f"lwcc.run: {count} ranks")
    options = {"-H": hosts, "--hostfile": hostfile, "--start-timeout": start_timeout, "--timeout": timeout}
    options["--output-filename"] = output_filename
    command = [sys.executable, "-m", "lwcc.launcher", "-np", str(count)]
    command += [str(part) for item in options.items() if item[1] is not None for part in item]
    command += ["--verbose"] if verbose else []
    here = os.getcwd() if hosts or hostfile else None  # other hosts see this folder, but not our /tmp
    with tempfile.TemporaryDirectory(prefix="lwcc-run-", dir=here) as folder:  # readable by this user only
        Path(folder, "call.pickle").write_bytes(pickled((func, tuple(args), dict(kwargs or {}))))
        code = subprocess.run(
            [*command, sys.executable, "-m", "lwcc.running", folder], env={**os.environ, **(env or {})}, check=False
        ).returncode
        return _collect(Path(folder), count, code)


def _collect(folder: Path, count: int, code: int) -> list[Any]:
    results, failed = [], []
    for rank in range(count):
        file = folder / f"result.{rank}.pickle"
        when, value, failure = pickle.loads(file.read_bytes()) if file.exists() else (float("inf"), None, "")
        results.append(value)
        if failure is not None:
            failed.append((when, rank, failure))
    if not failed and code == 0:
        return results
    _, rank, text = min(failed, default=(0.0, -1, ""))
    if not text:
        raise RunFailed(f"lwcc.run: the job ended with code {code}; the launcher's report is on stderr", -1, code)
    raise RunFailed(f"lwcc.run: rank {rank} of {count} raised:\n{text}", rank, code)


def _work(folder: Path) -> int:
    """Be one rank: call the function, leave its result or its traceback in the folder."""
    import time

    rank = int(os.environ["LWCC_RANK"])
    value, failure = None, None
    try:
        func, args, kwargs = pickle.loads((folder / "call.pickle").read_bytes())
        value = func(*args, **kwargs)
        data = pickled((time.time(), value, None))
    except Exception:
        failure = traceback.format_exc()
        data = pickled((time.time(), None, failure))
        print(failure, file=sys.stderr, flush=True)
    partial = folder / f"result.{rank}.part"
    partial.write_bytes(data)
    partial.rename(folder / f"result.{rank}.pickle")
    return 1 if failure else 0


if __name__ == "__main__":
    raise SystemExit(_work(Path(sys.argv[1])))
