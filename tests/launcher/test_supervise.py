"""Real jobs: failures, signals, time limits, and that nothing outlives lwccrun."""

from __future__ import annotations

import os
import re
import select
import signal
from pathlib import Path
from typing import Any

import pytest

FOREVER = "exec tail -f /dev/null"
MEMBER = """
import os, sys
from lwcc.launcher.store import StoreClient
rank = int(os.environ["LWCC_RANK"])
host, port = os.environ["LWCC_RENDEZVOUS"].split(":")
store = StoreClient(host, int(port), bytes.fromhex(os.environ["LWCC_SECRET"]))
"""


def _report(err: str) -> list[str]:
    """The lines of lwccrun's own report."""
    lines = err.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("lwccrun: rank "))
    return lines[first:]


@pytest.mark.parametrize(
    ("death", "code", "words"),
    [
        ("exit 7", 7, "exit code 7"),
        ("kill -SEGV $$", 139, "signal 11 (SIGSEGV)"),
        ("kill -KILL $$", 137, "signal 9 (SIGKILL)"),
        ("kill -ABRT $$", 134, "signal 6 (SIGABRT)"),
    ],
)
def test_the_first_failure_decides_code_and_report(lwccrun: Any, death: str, code: int, words: str) -> None:
    job = lwccrun("-np", "4", "sh", "-c", f"[ $RANK != 2 ] && {FOREVER}; echo last words >&2; {death}")
    got, _, err = job.finish()
    report = _report(err)
    assert got == code
    assert re.match(rf"lwccrun: rank 2 failed: {re.escape(words)} after [\d.]+ s \(host \S+, pid \d+\)", report[0])
    assert "  last words" in report
    assert "lwccrun: 3 others stopped by lwccrun (rank 0-1, 3)" in report
    assert any("Out of memory" in line for line in report) == (code == 137)
    assert len(report) <= 15


def test_who_fails_by_itself_is_blamed_also_if_its_victim_is_gone_sooner(lwccrun: Any) -> None:
    script = lwccrun.script(
        MEMBER + "if rank == 0:\n"
        "    store.get('started/1', 20)\n"
        "    sys.exit('lwcc.errors.ShutDown: rank 1 has left')\n"
        "store.set('started/1', b'1')\n"
        "store.get('exit/0', 20)\n"
        "print('KeyError: 5', file=sys.stderr); sys.exit(7)\n"
    )
    code, _, err = lwccrun("-np", "2", script).finish()
    report = _report(err)
    assert code == 7 and report[0].startswith("lwccrun: rank 1 failed: exit code 7") and "  KeyError: 5" in report
    assert "1 failed after it by themselves (rank 0)" in err


def test_a_python_exception_is_shown_with_its_last_frame(lwccrun: Any) -> None:
    script = lwccrun.script(
        "import os, signal\ndef deep(n):\n    if n == 0: raise ValueError('bad batch 17')\n    deep(n - 1)\n"
        "if os.environ['RANK'] == '1': deep(30)\nsignal.pause()\n"
    )
    code, _, err = lwccrun("-np", "2", script).finish()
    report = _report(err)
    assert code == 1 and "  ValueError: bad batch 17" in report and len(report) <= 15
    assert any("in deep" in line for line in report)


def test_ranks_may_end_well_at_different_times(lwccrun: Any) -> None:
    script = lwccrun.script(MEMBER + "rank == 1 and store.get('exit/0', 20) and store.get('exit/2', 20)\nprint('done')")
    code, out, err = lwccrun("-np", "3", script).finish()
    assert (code, sorted(out.splitlines())) == (0, ["[0] done", "[1] done", "[2] done"])
    assert err == ""


def test_survivors_learn_of_the_death_at_once_and_may_say_so(lwccrun: Any) -> None:
    script = lwccrun.script(
        MEMBER
        + "store.set(f'started/{rank}', b'1')\n[store.get(f'started/{r}', 20) for r in range(4)]\n"
        + "if rank == 3: os.kill(os.getpid(), 9)\n"
        + "sys.exit('PeerLost: rank 3, ' + store.get('exit/3', 20).decode())"
    )
    code, _, err = lwccrun("-np", "4", script).finish()
    assert code == 137
    assert err.count("PeerLost: rank 3, signal 9 (SIGKILL)") == 3
    report = _report(err)
    assert report[0].startswith("lwccrun: rank 3 failed: signal 9 (SIGKILL)")
    assert "lwccrun: 3 failed after it by themselves (rank 0-2)" in report


@pytest.mark.parametrize(
    "words",
    [
        "rank 1 has left (lwcc shutdown) and takes part in nothing",
        "raw collective: rank 1 (host a, pid 77) has left (lwcc shutdown) after rank 0",
        "rank 1 (host a, pid 77) is gone: closed",
    ],
)
def test_who_fails_for_another_is_not_blamed_even_if_it_ends_first(lwccrun: Any, words: str) -> None:
    script = lwccrun.script(
        MEMBER
        + "store.set(f'started/{rank}', b'1')\n[store.get(f'started/{r}', 20) for r in range(2)]\n"
        + f"if rank == 0: sys.exit('in a graph\\n{words}')\n"
        + "store.get('exit/0', 20)\nraise RuntimeError('my own bug')"
    )
    code, _, err = lwccrun("-np", "2", script).finish()
    report = _report(err)
    assert code == 1
    assert report[0].startswith("lwccrun: rank 1 failed: exit code 1"), report
    assert any("my own bug" in line for line in report), report


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(lwccrun: Any) -> None:
    script = "trap '' TERM; echo ready; [ $RANK = 0 ] || { while :; do read x < $FIFO; done; }; read x < $FIFO; exit 3"
    fifo = Path(lwccrun.script("")).with_suffix(".fifo")
    os.mkfifo(fifo)
    job = lwccrun("-np", "2", "--grace", "0.2", "-x", f"FIFO={fifo}", "sh", "-c", script)
    job.read_until(b"ready", 2)
    for rank in _rank_pids(job):
        if _variable(rank, "RANK") == "0":
            os.kill(rank, signal.SIGKILL)
    code, _, err = job.finish()
    assert code == 137 and "1 other stopped by lwccrun (rank 1)" in err


def test_a_stopped_rank_does_not_survive_the_job(lwccrun: Any) -> None:
    job = lwccrun("-np", "2", "sh", "-c", f"echo ready; {FOREVER}")
    job.read_until(b"ready", 2)
    first, second = sorted(_rank_pids(job), key=lambda pid: _variable(pid, "RANK"))
    os.kill(second, signal.SIGSTOP)
    os.kill(first, signal.SIGKILL)
    assert job.finish()[0] == 137


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_an_ending_signal_reaches_the_ranks_and_sets_the_code(lwccrun: Any, signum: int, code: int) -> None:
    name = signal.Signals(signum).name
    script = lwccrun.script(
        f"import os, signal, sys\ndef end(*_):\n    print('got it', end='', flush=True)\n    os._exit(0)\n"
        f"signal.signal(signal.{name}, end)\nprint('ready', flush=True)\nwhile True: signal.pause()"
    )
    job = lwccrun("-np", "3", script)
    job.read_until(b"ready", 3)
    got, out, err = job.kill(signum).finish()
    assert (got, out.count("] got it\n")) == (code, 3)
    assert "failed" not in err


def test_a_second_interrupt_kills_ranks_that_ignore_the_first(lwccrun: Any) -> None:
    script = lwccrun.script(
        "import signal\nsignal.signal(signal.SIGINT, lambda *_: print('no', flush=True))\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\nwhile True: signal.pause()"
    )
    job = lwccrun("-np", "2", "--grace", "1000", script)
    job.read_until(b"ready", 2)
    job.kill(signal.SIGINT).read_until(b"no", 2)
    code, _, err = job.kill(signal.SIGINT).finish()
    assert code == 130 and err.count("again to kill now") == 1


def test_user_signals_are_forwarded_and_the_job_goes_on(lwccrun: Any) -> None:
    script = lwccrun.script(
        "import signal\nboth = {signal.SIGUSR1, signal.SIGUSR2}\nsignal.pthread_sigmask(signal.SIG_BLOCK, both)\n"
        "print('ready')\nfor _ in both: print(signal.Signals(signal.sigwait(both)).name)\n"
    )
    job = lwccrun("-np", "2", script)
    job.read_until(b"ready", 2)
    job.kill(signal.SIGUSR1).read_until(b"SIGUSR1", 2)
    code, out, _ = job.kill(signal.SIGUSR2).finish()
    assert code == 0 and out.count("SIGUSR2") == 2


def test_stop_and_continue_reach_the_ranks(lwccrun: Any) -> None:
    script = lwccrun.script(
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})\n"
        "print('ready')\nsignal.sigwait({signal.SIGCONT})\nprint('continued')"
    )
    job = lwccrun("-np", "2", script)
    job.read_until(b"ready", 2)
    ranks = _rank_pids(job)
    job.kill(signal.SIGTSTP)
    _, status = os.waitpid(job.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert {_state(pid) for pid in ranks} == {"T"}
    code, out, _ = job.kill(signal.SIGCONT).finish()
    assert code == 0 and out.count("continued") == 2


def test_sigkill_of_the_launcher_leaves_no_process(lwccrun: Any, tmp_path: Path) -> None:
    said = tmp_path / "said"
    said.write_text("ready\n")  # by the children: in the middle of an exec a process has no environment to be found by
    job = lwccrun("-np", "3", "sh", "-c", f"trap '' TERM INT HUP; tail -f {said} & wait")
    job.read_until(b"ready", 3)
    assert len(job.leftovers()) >= 7  # three shells, their children, the watchdog
    job.kill(signal.SIGKILL).process.wait()
    job.wait_until_nothing_is_left()


def test_what_a_rank_left_in_its_group_is_killed(lwccrun: Any) -> None:
    job = lwccrun("-np", "1", "sh", "-c", "trap '' TERM; tail -f /dev/null & echo started; exit 3")
    code, out, err = job.finish()
    assert code == 3 and out == "[0] started\n" and "rank 0 failed: exit code 3" in err


def test_a_daemon_that_holds_the_pipe_does_not_hold_up_the_end(lwccrun: Any) -> None:
    job = lwccrun("-np", "1", "sh", "-c", "setsid tail -f /dev/null & echo last")
    assert job.process.wait(30) == 0
    assert job.process.stdout.read() == b"[0] last\n"
    for pid in job.leftovers():  # it made a session of its own: documented as not covered
        os.kill(pid, signal.SIGKILL)
    job.wait_until_nothing_is_left()


def test_the_time_limit_ends_the_job_with_124(lwccrun: Any) -> None:
    code, _, err = lwccrun("-np", "2", "--timeout", "0.3", "sh", "-c", FOREVER).finish()
    assert code == 124
    assert err == "lwccrun: time limit of 0.3 s reached; stopped rank 0-1\n"


def test_the_start_limit_lists_the_ranks_that_did_not_arrive(lwccrun: Any) -> None:
    script = lwccrun.script(
        MEMBER + "import signal\nif rank != 1: store.set(f'started/{rank}', b'1')\n"
        "else: print('still loading', file=sys.stderr, flush=True)\nsignal.pause()"
    )
    code, _, err = lwccrun("-np", "3", "--start-timeout", "3", script).finish()
    assert code == 124
    assert "lwccrun: 1 of 3 ranks did not call lwcc.init within 3 s:" in err
    assert re.search(r"  rank 1 \(host \S+, pid \d+\), last on stderr: still loading", err)
    assert "  rank 0" not in err and "  rank 2" not in err


def _rank_pids(job: Any) -> list[int]:
    return [pid for pid in job.leftovers() if _variable(pid, "LWCC_RANK")]


def _variable(pid: int, name: str) -> str:
    for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
        if pair.startswith(name.encode() + b"="):
            return pair.partition(b"=")[2].decode()
    return ""


def _state(pid: int) -> str:
    """The process's state letter, once it is stopped or 10 s have passed."""
    for _ in range(1000):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "T":
            break
        select.select([], [], [], 0.01)
    return state
