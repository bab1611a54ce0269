"""Before ranks start on other hosts: reach all at once, ask each whether it is fit, choose where everybody meets."""

from __future__ import annotations

import json
import os
import selectors
import sys
import time
from collections.abc import Sequence

from lwcc.launcher import info
from lwcc.launcher.args import LaunchSpec
from lwcc.launcher.nics import Nic, addresses
from lwcc.launcher.remote import Agent, srun_command, ssh_command
from lwcc.launcher.server import StoreServer
from lwcc.launcher.spawn import CannotRun

PREFLIGHT_S = 60.0
_UNREACHABLE = 3  # lwccrun's exit code if a host is not fit


class Fleet:
    """The agents of one job, by host. `address`: at which all hosts reach this one; `first_port`: free on the first."""

    def __init__(self, spec: LaunchSpec, hosts: Sequence[str], silence_s: float) -> None:
        self.agents: dict[str, Agent] = {}
        self.address = ""
        for host in hosts:
            if spec.starter == "slurm":
                command = srun_command(host)
            else:
                command = ssh_command(spec.ssh, spec.ssh_port, spec.ssh_identity, host)
            self.agents[host] = Agent(host, command, silence_s)

    def preflight(self, spec: LaunchSpec, store: StoreServer, secret: bytes) -> None:
        """Ask all hosts at once, each within the same time. Raises CannotRun, naming every host that is not fit."""
        own = addresses(spec.extra_env.get("LWCC_IFACE", "")) or [Nic("lo", "127.0.0.1")]
        script = spec.command[0] if spec.command[0].endswith(".py") and not spec.module else ""
        question = {
            "op": "probe", "cwd": os.getcwd(), "script": script, "port": store.port,
            "addresses": [nic.address for nic in own], "secret": secret.hex(),
        }  # fmt: skip
        for agent in self.agents.values():
            agent.say(question)
        limit = min(spec.start_timeout or PREFLIGHT_S, PREFLIGHT_S)
        self._listen(limit)
        problems = [text for agent in self.agents.values() for text in _unfit(agent, limit)]
        if problems:
            shown = problems[:12] + ([f"and {len(problems) - 12} more"] if len(problems) > 12 else [])
            raise CannotRun("not every host can take ranks:\n" + "\n".join("  " + line for line in shown), _UNREACHABLE)
        nic = self._common(own)
        self.address = nic.address
        who = "1 host reaches" if len(self.agents) == 1 else f"{len(self.agents)} hosts reach"
        print(f"lwccrun: {who} this one at {nic.address} ({nic.name})", file=sys.stderr)

    def _listen(self, limit: float) -> None:
        deadline = time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            for agent in self.agents.values():
                selector.register(agent.fd, selectors.EVENT_READ, agent)
            while selector.get_map() and time.monotonic() < deadline:
                for key, _ in selector.select(max(deadline - time.monotonic(), 0)):
                    if not key.data.take() or key.data.ready is not None:
                        selector.unregister(key.fd)

    def _common(self, own: Sequence[Nic]) -> Nic:
        """The first of our addresses that every host reaches."""
        for nic in own:
            if all(agent.ready and nic.address in agent.ready["reached"] for agent in self.agents.values()):
                return nic
        rows = []
        for agent in self.agents.values():
            reached = list((agent.ready or {})["reached"])
            rows.append(f"  {agent.host} reaches {', '.join(reached) or 'none'}")
        tried = ", ".join(f"{nic.address} ({nic.name})" for nic in own)
        raise CannotRun(
            f"no address of this host is reached by all others; tried {tried}:\n" + "\n".join(rows[:10])
            + "\n  Is there a firewall, or another network to choose with --nic NAME|CIDR?", _UNREACHABLE,
        )  # fmt: skip

    def address_of(self, host: str) -> tuple[str, int]:
        """The address of a host on the way to us, and a port that was free there."""
        ready = self.agents[host].ready or {}
        return str(ready["reached"][self.address]), int(ready["port"])

    def close(self) -> None:
        """End all lines."""
        for agent in self.agents.values():
            agent.hang_up()
        deadline = time.monotonic() + 3.0
        for agent in self.agents.values():
            agent.reap(min(deadline, time.monotonic() + 0.5) if agent.ended else deadline)


def _unfit(agent: Agent, limit: float) -> list[str]:
    """What is wrong with a host, each in a line with the remedy."""
    host, ready = agent.host, agent.ready
    if ready is None:
        why = agent.why_it_ended() if agent.ended else f"no answer within {limit:g} s"
        return [f"{host}: {why}{_advice(agent)}"]
    found = [f"{host}: {problem}" for problem in ready["problems"]]
    for what, theirs, ours in (
        ("Python", ready["python"], sys.version.split()[0]),
        ("lwcc", ready["version"], info.version()),
    ):
        if theirs != ours:
            found.append(f"{host}: {what} {theirs} there, but {ours} here; install the same ({sys.executable})")
    return found


def _advice(agent: Agent) -> str:
    text = "\n".join(agent.words)
    for sign, advice in (
        ("Permission denied", f"ssh-copy-id {agent.host}"),
        (
            "Host key verification failed",
            f"ssh-keyscan {agent.host} >> ~/.ssh/known_hosts, if that host is to be trusted",
        ),
        ("Could not resolve", "is the name right? Try an address"),
        ("Connection refused", "is sshd running there, and on that port (-p)?"),
        ("timed out", "is the host up, and does a firewall let ssh through?"),
        ("No route to host", "is the host up?"),
        ("No module named", f"install lwcc there: {sys.executable} -m pip install lwcc"),
        ("No such file or directory", f"there is no {sys.executable}; install the same Python at the same path"),
        ("not found", f"there is no {sys.executable}; install the same Python at the same path"),
    ):
        if sign in text:
            return f"; {advice}"
    return ""


def peer_timeout(spec: LaunchSpec) -> float:
    """Seconds of silence after which a host counts as dead: the ranks' own limit."""
    text = spec.extra_env.get("LWCC_PEER_TIMEOUT") or os.environ.get("LWCC_PEER_TIMEOUT") or ""
    try:
        return max(float(text), 2.0) if text else 20.0
    except ValueError:
        raise CannotRun(f"LWCC_PEER_TIMEOUT={json.dumps(text)} is not a number of seconds", 2) from None
