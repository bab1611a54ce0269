"""Runs a job: starts the ranks, moves their output, passes signals on, and ends everything when it must.

One thread, one selector. Signals arrive as bytes on a wake-up socket, so nothing here is interrupted half-way. Ending
is an escalation: a list of moments and signals that is worked through until no rank is left.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lwcc.launcher import report
from lwcc.launcher.args import LaunchSpec
from lwcc.launcher.blame import find_cause, order
from lwcc.launcher.env import Meeting, Seat, rank_environment, rank_variables, seats, travelling
from lwcc.launcher.fleet import Fleet
from lwcc.launcher.mpicrew import LAUNCHER, MpiCrew
from lwcc.launcher.output import Screen, Stream
from lwcc.launcher.remote import Agent, RemoteRank
from lwcc.launcher.runlog import RunLog
from lwcc.launcher.server import StoreServer
from lwcc.launcher.spawn import DRAIN_S, LINGER_S, LocalRank, Rank, Watchdog, exit_code, start_process

SETTLE_S = 2.0  # survivors that use LWCC may report the lost rank themselves before they get SIGTERM; a lost host's
# ranks may live until their agent misses us, so that their peers take as much longer to know
_READ_NBYTES = 1 << 18
_FORWARDED_TO_RANKS = (signal.SIGUSR1, signal.SIGUSR2)  # not to data loader workers, which these would kill
ENDING = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}  # what ends a job, and its exit code
_HANDLED = (*ENDING, *_FORWARDED_TO_RANKS, signal.SIGTSTP, signal.SIGCONT, signal.SIGCHLD)


class Meet(NamedTuple):
    """What the ranks meet through: the store, and the agents on other hosts, if there are any."""

    store: StoreServer
    fleet: Fleet | None = None


class Supervisor:
    """One run of one job. run() returns lwccrun's exit code."""

    def __init__(self, spec: LaunchSpec, command: Sequence[str], meeting: Meeting, meet: Meet) -> None:
        self._spec = spec
        self._command = command
        self._meeting = meeting
        self._store, self._fleet = meet
        self._screen = Screen()
        self._selector = selectors.DefaultSelector()
        self._ranks: list[Rank] = []
        self._processes: list[Rank] = []  # the ranks, and the MPI's launcher if there is one
        self._crew: MpiCrew | None = None  # the ranks that it starts
        self._lines: list[Agent] = []  # to the other hosts
        self._watchdog: Watchdog | None = None
        self._began = time.monotonic()
        self._failed: Rank | None = None  # the first failure
        self._code: int | None = None  # decided by the first thing that went wrong
        self._text = ""  # said at the end, instead of a first-failure report
        self._escalation: list[tuple[float, signal.Signals]] = []
        self._start_checked = spec.start_timeout is None

    def run(self, log: RunLog, base_env: dict[str, str]) -> int:
        """Start the ranks and see the job through. Whatever happens, no process of the job is left."""
        wake_read, wake_write = socket.socketpair()
        wake_read.setblocking(False)
        wake_write.setblocking(False)
        self._selector.register(wake_read, selectors.EVENT_READ, None)
        old_fd = signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        old_handlers = _take_signals()
        try:
            self._watchdog = Watchdog()
            if self._spec.engine == "mpi":
                self._start_by_mpi(log, base_env)
            else:
                self._start_ranks(log, base_env)
            while self._busy():
                self._turn()
            code = self._conclude(log)
        finally:
            self._kill_everything()
            for signum, handler in old_handlers.items():
                signal.signal(signum, handler)
            signal.set_wakeup_fd(old_fd)
            self._selector.close()
            wake_read.close()
            wake_write.close()
        return code

    def _start_ranks(self, log: RunLog, base_env: dict[str, str]) -> None:
        agents = self._fleet.agents if self._fleet is not None else {}
        remote: dict[str, list[tuple[RemoteRank, dict[str, str]]]] = {host: [] for host in agents}
        for seat in seats(self._spec.hosts, self._spec.np):
            streams = self._make_streams(seat.rank, log)
            if seat.rank == 0:
                log.started(rank_environment(base_env, self._spec.extra_env, seat, self._meeting))
            if seat.host in agents:
                rank = RemoteRank(seat.rank, agents[seat.host], streams)
                remote[seat.host].append((rank, rank_variables(seat, self._meeting)))
                self._ranks.append(rank)
            else:
                self._ranks.append(self._start_here(seat, base_env, streams))
        self._processes = list(self._ranks)
        common = {**travelling(base_env), **self._spec.extra_env}
        for host, agent in agents.items():
            self._selector.register(agent.fd, selectors.EVENT_READ, agent)
            self._lines.append(agent)
            agent.start(self._command, common, remote[host])

    def _start_by_mpi(self, log: RunLog, base_env: dict[str, str]) -> None:
        """Start one process, the MPI's launcher; its ranks report for themselves."""
        crew = self._crew = MpiCrew(self._spec.crew)
        self._selector.register(crew.fd, selectors.EVENT_READ, crew)
        for seat in seats(self._spec.hosts, self._spec.np):
            rank = crew.add(seat.rank, self._host_of(seat), self._make_streams(seat.rank, log))
            self._ranks.append(rank)
            for fd, stream in rank.open_pipes().items():
                self._selector.register(fd, selectors.EVENT_READ, stream)
        seat, streams = seats(self._spec.hosts, 1)[0], (Stream(self._screen, 0, None), Stream(self._screen, 1, None))
        log.started(rank_environment(base_env, self._spec.extra_env, seat, self._meeting))
        self._processes = [*self._ranks, self._start_here(seat, base_env, streams, LAUNCHER)]

    def _host_of(self, seat: Seat) -> str:
        return self._spec.places[seat.rank] if self._spec.places else seat.host

    def _make_streams(self, rank: int, log: RunLog) -> tuple[Stream, Stream]:
        files, width = log.open(rank), len(str(self._spec.np - 1))
        streams = []
        for which in (0, 1):
            tag = self._screen.tag(which, rank, width) if self._spec.tag else None
            shown = self._spec.only_rank in (None, rank)
            stream = Stream(self._screen, which, tag, shown=shown, live=rank == (self._spec.only_rank or 0))
            stream.log = files[which]
            streams.append(stream)
        return streams[0], streams[1]

    def _start_here(
        self, seat: Seat, base_env: dict[str, str], streams: tuple[Stream, Stream], number: int | None = None
    ) -> Rank:
        """Start a rank, or what goes by another number, on this machine."""
        env = rank_environment(base_env, self._spec.extra_env, seat, self._meeting)
        prefix = self._spec.prefixes[seat.rank] if self._spec.prefixes else ()
        process = start_process([*prefix, *self._command], env, with_stdin=seat.rank == 0)
        if self._watchdog is not None:
            self._watchdog.watch(process.pid)
        rank = LocalRank(seat.rank if number is None else number, self._host_of(seat), process, streams)
        for fd, stream in rank.open_pipes().items():
            self._selector.register(fd, selectors.EVENT_READ, stream)
        if self._spec.verbose:
            name = f"rank {rank.rank}" if rank.rank != LAUNCHER else "the MPI's launcher"
            self._say(f"lwccrun: {name} is pid {process.pid}\n")
        return rank

    def _busy(self) -> bool:
        pipes = len(self._selector.get_map()) - 1 - len(self._lines) - (self._crew is not None)
        return pipes > 0 or any(r.died is None or r.group_alive() for r in self._processes)

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._patience()):
            if key.data is None:
                self._take_wakeups(key.fileobj)
            elif isinstance(key.data, MpiCrew):
                key.data.take()
            elif isinstance(key.data, Agent):
                self._guarded(key.data.take)
            else:
                self._guarded_read(key.fd, key.data)
        self._check_lines()
        ended = [r for r in self._processes if r.reap()]
        if self._crew is not None and self._processes[-1].died is not None:
            self._crew.lose()
            ended += [r for r in self._ranks if r.reap()]
        if ended:
            self._note_ends(ended)
        self._tidy_groups()
        self._check_limits()
        self._escalate()

    def _patience(self) -> float | None:
        """Seconds until something is due."""
        now = time.monotonic()
        due = [when for when, _ in self._escalation[:1]]
        if self._code is None:
            limits = [self._spec.timeout] + ([] if self._start_checked else [self._spec.start_timeout])
            due += [self._began + limit for limit in limits if limit is not None]
        if any(r.died is not None and (r.group_alive() or self._open_fds(r)) for r in self._processes):
            due.append(now + 0.02)  # nothing tells us when a group empties: look again
        due += [now + line.silence_s / 4 for line in self._lines]
        return max(min(due) - now, 0.0) if due else None

    def _open_fds(self, rank: Rank) -> list[int]:
        open_fds = self._selector.get_map()
        return [fd for fd in rank.open_pipes() if fd in open_fds]

    # ---- output ----

    def _guarded_read(self, fd: int, stream: Stream) -> None:
        self._guarded(lambda: self._read(fd, stream))

    def _guarded(self, read: Callable[[], object]) -> None:
        try:
            read()
        except BrokenPipeError:  # nobody reads our output any more, as in `lwccrun ... | head`
            self._screen.fds = (os.open(os.devnull, os.O_WRONLY),) * 2
            self._end_with(128 + signal.SIGPIPE, signal.SIGTERM)

    def _check_lines(self) -> None:
        """Keep the lines to the other hosts alive, and let go those that have ended."""
        for line in list(self._lines):
            line.check()
            if line.ended:
                self._selector.unregister(line.fd)
                self._lines.remove(line)

    def _read(self, fd: int, stream: Stream) -> None:
        try:
            data = os.read(fd, _READ_NBYTES)
        except BlockingIOError:
            return
        if data:
            stream.feed(data)
        else:
            self._selector.unregister(fd)
            stream.finish()

    def _say(self, text: str) -> None:
        try:
            self._screen.write(1, text.encode("utf-8", "replace"))
        except BrokenPipeError:
            pass  # nobody left to tell

    # ---- signals ----

    def _take_wakeups(self, sock: object) -> None:
        assert isinstance(sock, socket.socket)
        try:
            numbers = sock.recv(4096)
        except BlockingIOError:
            return
        for number in numbers:
            self._take_signal(signal.Signals(number))

    def _take_signal(self, signum: signal.Signals) -> None:
        if signum in ENDING:
            self._take_ending_signal(signum)
        elif signum in _FORWARDED_TO_RANKS:
            for rank in self._running():
                rank.signal(signum)
        elif signum == signal.SIGTSTP:
            self._pause()
        elif signum == signal.SIGCONT:
            self._signal_groups(signal.SIGCONT)

    def _take_ending_signal(self, signum: signal.Signals) -> None:
        if signum != signal.SIGINT or self._code is None:
            if signum == signal.SIGINT:
                self._say(f"\nlwccrun: interrupting {len(self._alive())} ranks; again to kill now\n")
            self._end_with(ENDING[signum], signum)
        else:  # a second Ctrl-C, or one while the job is ending anyway
            self._escalation = [(time.monotonic(), signal.SIGKILL)]

    def _pause(self) -> None:
        """Stop the ranks and ourselves. SIGSTOP, as the kernel ignores SIGTSTP for sessions without a terminal."""
        stopped = time.monotonic()
        self._signal_groups(signal.SIGSTOP)
        for line in self._lines:
            line.say({"op": "pause"})
        os.kill(os.getpid(), signal.SIGSTOP)  # returns after SIGCONT
        for line in self._lines:
            line.heard = time.monotonic()
        self._signal_groups(signal.SIGCONT)
        pause = time.monotonic() - stopped
        self._began += pause
        self._escalation = [(when + pause, what) for when, what in self._escalation]

    def _alive(self) -> list[Rank]:
        return [r for r in self._ranks if r.died is None]

    def _running(self) -> list[Rank]:
        return [r for r in self._processes if r.died is None]

    def _signal_groups(self, signum: signal.Signals) -> None:
        for rank in self._running():
            rank.signal_group(signum)

    # ---- ends ----

    def _note_ends(self, ended: list[Rank]) -> None:
        for rank in ended:
            if rank.rank != LAUNCHER:
                self._store.set(f"exit/{rank.rank}", rank.how.encode())
                if self._spec.verbose:
                    self._say(f"lwccrun: rank {rank.rank} ended: {rank.how}\n")
            if self._crew is not None and self._code is not None:  # the MPI ends all when one has failed
                rank.stopped_by_us |= rank.rank == LAUNCHER or (rank.status or 0) < 0
        failed = sorted((r for r in ended if r.status != 0), key=order)
        if not failed or self._code is not None:
            return
        self._failed = failed[0]
        self._code = exit_code(failed[0].status or 0)
        uses_lwcc = any(self._store.try_get(f"started/{r.rank}") is not None for r in self._alive())
        settle = SETTLE_S + (max((line.silence_s for line in self._lines), default=0.0) if self._failed.lost else 0.0)
        self._plan_end(time.monotonic() + (settle if uses_lwcc else 0.0))

    def _end_with(self, code: int, first: signal.Signals) -> None:
        """End the job because of something outside the ranks; the first such reason decides the code."""
        self._signal_groups(first)
        for rank in self._running():
            rank.stopped_by_us |= first == signal.SIGTERM
        if self._code is not None:
            return  # the escalation is under way: a repeated signal must not postpone it
        self._code = code
        now = time.monotonic()
        if first == signal.SIGTERM:
            self._escalation = [(now + self._spec.grace, signal.SIGKILL)]
        else:
            self._plan_end(now + self._spec.grace)

    def _plan_end(self, when: float) -> None:
        self._escalation = [(when, signal.SIGTERM), (when + self._spec.grace, signal.SIGKILL)]

    def _escalate(self) -> None:
        while self._escalation and time.monotonic() >= self._escalation[0][0]:
            _, signum = self._escalation.pop(0)
            for rank in self._running():
                rank.stopped_by_us = True
                rank.signal_group(signum)
                rank.signal_group(signal.SIGCONT)  # a stopped process would not see SIGTERM

    def _tidy_groups(self) -> None:
        """After a rank's end: give what it left behind a moment, then kill its group and close its pipes."""
        now = time.monotonic()
        for rank in self._processes:
            if rank.died is None or (rank.group_gone and not self._open_fds(rank)) or isinstance(rank, RemoteRank):
                continue  # an agent tidies up itself
            if not rank.group_gone and not rank.group_alive() and self._watchdog is not None:
                self._watchdog.forget(rank.pid)
            if now >= rank.died + LINGER_S:
                rank.signal_group(signal.SIGKILL)
            if now >= rank.died + LINGER_S + DRAIN_S:
                rank.group_gone = True  # only zombies that nobody reaps can still be there
                self._close_pipes(rank)

    def _close_pipes(self, rank: Rank) -> None:
        for fd in self._open_fds(rank):
            stream = rank.open_pipes()[fd]
            self._guarded_read(fd, stream)
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
                stream.finish()

    def _check_limits(self) -> None:
        if self._code is not None:
            return
        elapsed = time.monotonic() - self._began
        if self._spec.timeout is not None and elapsed >= self._spec.timeout:
            alive = report.rank_list([r.rank for r in self._alive()])
            self._text = f"lwccrun: time limit of {self._spec.timeout:g} s reached; stopped rank {alive}\n"
            self._end_with(124, signal.SIGTERM)
        elif not self._start_checked and self._spec.start_timeout is not None and elapsed >= self._spec.start_timeout:
            self._start_checked = True
            keys = self._store.prefix("started/")
            started = {r.rank for r in self._ranks if f"started/{r.rank}" in keys}
            if any(r.rank not in started for r in self._alive()):
                self._text = report.missing_ranks(self._ranks, started, self._spec.start_timeout)
                self._end_with(124, signal.SIGTERM)

    def _conclude(self, log: RunLog) -> int:
        if self._failed is not None:
            cause = find_cause(self._failed, self._ranks)
            if cause is not self._failed:
                self._failed, self._code = cause, exit_code(cause.status or 0)
            self._text = report.first_failure(self._failed, self._ranks, self._spec.log_dir)
        code = self._code or 0
        if self._text:
            self._say(self._text)
        log.ended(self._ranks, code)
        return code

    def _kill_everything(self) -> None:
        for rank in self._processes or self._ranks:
            rank.close()
        if self._crew is not None:
            self._crew.close()
        if self._watchdog is not None:
            self._watchdog.end()


def _take_signals() -> dict[int, Any]:
    """Route signals to the wake-up socket. Those that were ignored when we started (nohup) stay so."""
    old: dict[int, Any] = {}
    for signum in _HANDLED:
        before = signal.getsignal(signum)
        if before is not signal.SIG_IGN or signum in (signal.SIGCHLD, signal.SIGCONT):
            old[signum] = before
            signal.signal(signum, lambda *_: None)
    return old
