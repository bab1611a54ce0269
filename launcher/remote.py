"""lwccrun's side of the other hosts: one agent on each, started by ssh or srun, and the ranks behind it."""

from __future__ import annotations

import base64
import collections
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from lwcc.launcher.output import Stream
from lwcc.launcher.spawn import Rank, with_shim

MARK = b"lwcc-agent "
_READ_NBYTES = 1 << 18


def ssh_command(ssh: str, port: str | None, identity: str | None, host: str) -> list[str]:
    """How to run the agent on a host by ssh. Never asks for a password: nobody is there to type it."""
    options = ["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"]
    options += ["-p", port] if port else []
    options += ["-i", identity] if identity else []
    return [*shlex.split(ssh), *options, "--", host, "exec " + shlex.join(agent_command())]


def srun_command(host: str) -> list[str]:
    """How to run the agent on a host of this Slurm job, beside whatever else runs there."""
    place = ["-N1", "-n1", "-w", host, "--overlap", "--ntasks-per-node=1", "--kill-on-bad-exit=1", "--mpi=none"]
    return ["srun", *place, "--unbuffered", *agent_command()]


def agent_command() -> list[str]:
    """The agent, in the same Python as this one."""
    return [sys.executable, "-I", "-m", "lwcc.launcher.agent"]


class Agent:
    """The line to one host. After start() of the ranks, take() and check() report what happens there."""

    def __init__(self, host: str, command: Sequence[str], silence_s: float) -> None:
        self.host = host
        self.silence_s = silence_s
        self.ready: dict[str, Any] | None = None
        self.ranks: dict[int, RemoteRank] = {}
        self.ended: str = ""  # why the line has ended
        self.heard = self._said = time.monotonic()
        self._pending = b""
        self._last: collections.deque[str] = collections.deque(maxlen=20)  # what was no message: ssh's, a login's
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_STEP", "SLURM_TASKS_PER"))}
        env = {k: v for k, v in env.items() if k not in ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE")}
        self._process = subprocess.Popen(
            with_shim(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, bufsize=0, env=env,
        )  # fmt: skip
        for fd in (self._stdin, self.fd):
            os.set_blocking(fd, False)

    @property
    def fd(self) -> int:
        """Where the host's messages are read."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    @property
    def _stdin(self) -> int:
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def say(self, message: dict[str, Any]) -> None:
        """Send a message. One that cannot go is lost: the silence that follows is noticed."""
        view = memoryview(json.dumps(message).encode() + b"\n")
        deadline = time.monotonic() + 5.0
        while view and time.monotonic() < deadline:
            try:
                view = view[os.write(self._stdin, view) :]
            except BlockingIOError:
                time.sleep(0.005)  # a line as long as a pipe holds, at the start
            except BrokenPipeError:
                return
        self._said = time.monotonic()

    def take(self) -> bool:
        """Read what has come. False: the line has ended."""
        try:
            data = os.read(self.fd, _READ_NBYTES)
        except BlockingIOError:
            return True
        self.heard = time.monotonic()
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            before, mark, text = line.partition(MARK)
            if mark:
                self._obey(json.loads(text))
            elif before.strip():
                self._last.append(before.decode("utf-8", "replace").strip())
        if not data:
            self._lose(self.why_it_ended())
        return bool(data)

    def why_it_ended(self) -> str:
        """What the end of the process says, and its last words."""
        try:
            code: int | None = self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            code = None
        words = self._last[-1] if self._last else ""
        return f"its agent ended with code {code}" + (f" ({words[:300]})" if words else "")

    @property
    def words(self) -> list[str]:
        """The last lines that were no messages."""
        return list(self._last)

    def check(self) -> None:
        """Keep the line alive; give the host up if it has been silent for too long."""
        now = time.monotonic()
        if not self.ended and now >= self.heard + self.silence_s:
            self._lose(f"no sign of life for {self.silence_s:g} s")
        if now >= self._said + self.silence_s / 4 and not self.ended:
            self.say({"op": "alive"})

    def start(
        self, command: Sequence[str], env: dict[str, str], ranks: list[tuple[RemoteRank, dict[str, str]]]
    ) -> None:
        """Start ranks there: env is common, each has more of its own."""
        self.ranks = {rank.rank: rank for rank, _ in ranks}
        own = [(rank.rank, variables) for rank, variables in ranks]
        message = {"op": "start", "command": list(command), "env": env, "ranks": own, "silence": self.silence_s}
        self.heard = time.monotonic()
        self.say(message)

    def _lose(self, why: str) -> None:
        self.ended = why
        for rank in self.ranks.values():
            if rank.gone_at is None:
                rank.lose(f"lost with its host {self.host}: {why}")
            rank.group_gone = True
            rank.finish_streams()

    def _obey(self, message: dict[str, Any]) -> None:
        if message["op"] == "ready":
            self.ready = message
        rank = self.ranks.get(message.get("rank", -1))
        if rank is not None:
            rank.take(message)

    def hang_up(self) -> None:
        """End the line: the agent then kills what is left."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()

    def reap(self, deadline: float) -> None:
        """Wait for the end of ssh until deadline (monotonic seconds); kill it if it does not follow."""
        try:
            self._process.wait(timeout=max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class RemoteRank(Rank):
    """A rank behind an agent: what the agent tells of it."""

    def __init__(self, rank: int, agent: Agent, streams: tuple[Stream, Stream]) -> None:
        super().__init__(rank, agent.host, 0, streams)
        self._agent = agent
        self._open = {0, 1}
        self.gone_at: float | None = None  # when its end was told

    def signal_group(self, signum: int) -> None:
        """Ask the agent."""
        self._ask(signum, True)

    def signal(self, signum: int) -> None:
        """Ask the agent."""
        self._ask(signum, False)

    def _ask(self, signum: int, group: bool) -> None:
        if not self._agent.ended and not self.group_gone and signum:
            self._agent.say({"op": "signal", "rank": self.rank, "signum": int(signum), "group": group})

    def close(self) -> None:
        """Nothing: its agent has what is left of it."""

    def reap(self) -> bool:
        """True once: when its end has been told."""
        if self.died is not None or self.gone_at is None:
            return False
        self.died = self.gone_at
        return True

    def take(self, message: dict[str, Any]) -> None:
        """What the agent tells."""
        op = message["op"]
        if op == "started":
            self.pid = message["pid"]
        elif op == "output":
            self.streams[message["which"]].feed(base64.b64decode(message["data"]))
        elif op == "eof":
            self._open.discard(message["which"])
            self.streams[message["which"]].finish()
        elif op == "ended":
            self.status, self.gone_at = message["status"], time.monotonic()
        elif op == "gone":
            self.group_gone = True
            self.finish_streams()
        elif op == "failed":
            self.lose(message["why"])
            self.group_gone = True

    def lose(self, why: str) -> None:
        """Nothing more will be told of it. It did not stop because it was asked to."""
        self.status, self.gone_at, self.lost, self.stopped_by_us = 1, time.monotonic(), why, False

    def finish_streams(self) -> None:
        """Hand over the last lines."""
        for which in list(self._open):
            self._open.discard(which)
            self.streams[which].finish()
