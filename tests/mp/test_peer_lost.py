"""A dead rank is an exception on every other rank, which names it and how it ended."""

from __future__ import annotations

from typing import Any

import pytest

ENDINGS = {
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    "exit": ("os._exit(3)", "3"),
}


@pytest.mark.parametrize(
    ("how", "wire"),
    [(h, w) for h in ENDINGS for w in ("auto", "tcp")] + [("killed", "ucx-tcp"), ("killed", "ucx-shm")],
)
def test_survivors_raise_and_name_the_dead(run_ranks: Any, wires: Any, how: str, wire: str) -> None:
    end, word = ENDINGS[how]
    done = run_ranks(
        3,
        f"""
import itertools, os, signal, sys
for turn in range(2):
    try:
        for step in itertools.count():
            if rank == 1 and step == 5:
                {end}
            lwcc.allreduce(np.ones(1000), name="t")
    except lwcc.PeerLost as error:
        assert error.rank == 1, error
        assert "rank 1" in str(error), error
        print("LOST", rank, error, flush=True)
""",
        env={**wires(wire), "LWCC_LOG_LEVEL": "error"},
        code=None,
    )
    assert done.code != 0
    assert done.out.count("LOST 0") == 2, done.tail()
    assert done.out.count("LOST 2") == 2, done.tail()
    assert word in done.out + done.err
