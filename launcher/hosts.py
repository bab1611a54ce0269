"""Host lists and host files: pure, strict parsing.

A host is ``name``, ``name:4`` or ``name slots=4``; names may hold ranges such as ``n[1-4,7]`` (leading zeros are kept:
``n[01-10]``); lists are separated by commas. In files each line is one or more hosts, and ``#`` starts a comment.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

MAX_HOSTS = 4096
MAX_SLOTS = 65536

_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.\-]|\[[^\[\]]*\])*")
_NAME_RANGE_FIRST = re.compile(r"(?:\[[^\[\]:]*\])(?:[A-Za-z0-9_.\-]|\[[^\[\]]*\])*")
_IPV6 = re.compile(r"\[([0-9A-Fa-f]*:[0-9A-Fa-f:.]*)\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_SLOTS = re.compile(r":(\d+)|[ \t]+slots[ \t]*=[ \t]*(\d+)")
_BLANK = re.compile(r"[ \t]*")


@dataclass(frozen=True)
class Host:
    """A host and how many ranks it takes."""

    name: str
    slots: int


class HostError(ValueError):
    """A host list that does not parse. Its text shows the line and a caret under the offending column."""

    def __init__(self, text: str, column: int, problem: str, where: str) -> None:
        self.column = column
        shown = "".join(c if c.isprintable() else " " for c in text)
        super().__init__(f"{where}: {problem}\n  {shown}\n  {' ' * column}^")


def parse_hosts(text: str, where: str = "hosts") -> tuple[Host, ...]:
    """Parse a list such as ``a:4,b slots=2,n[1-3]:8``; a host without slots has one. Raises HostError."""
    hosts = _parse_line(text, where)
    if not hosts:
        raise HostError(text, 0, "no host given", where)
    return _unique(hosts, text, where)


def parse_hostfile(text: str, where: str = "hostfile") -> tuple[Host, ...]:
    """Parse a host file: one or more hosts a line, blank lines and # comments allowed. Raises HostError."""
    hosts: list[Host] = []
    line = ""
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{where}, line {number}"
        hosts += _parse_line(line.split("#", 1)[0].rstrip(), place)
        _unique(hosts, line, place)
    if not hosts:
        raise HostError(line, 0, "the file names no host", where)
    return tuple(hosts)


def _parse_line(text: str, where: str) -> list[Host]:
    hosts: list[Host] = []
    at = _skip_blank(text, 0)
    while at < len(text):
        names, at = _parse_names(text, at, where)
        slots, at = _parse_slots(text, at, where)
        hosts += [Host(name, slots) for name in names]
        if len(hosts) > MAX_HOSTS:
            raise HostError(text, min(at, len(text)), f"more than {MAX_HOSTS} hosts", where)
        at = _skip_blank(text, at)
        if at == len(text):
            break
        if text[at] != ",":
            raise HostError(text, at, f"expected a comma, ':slots' or 'slots=', found {text[at]!r}", where)
        at = _skip_blank(text, at + 1)
        if at == len(text):
            raise HostError(text, at, "expected a host after the comma", where)
    return hosts


def _skip_blank(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _parse_names(text: str, at: int, where: str) -> tuple[list[str], int]:
    address = _IPV6.match(text, at)
    if address:
        return [address.group(1)], address.end()
    found = _NAME.match(text, at) or _NAME_RANGE_FIRST.match(text, at)
    if not found:
        problem = "the bracket is not closed" if text[at] == "[" else f"a host name can't start with {text[at]!r}"
        raise HostError(text, at, problem, where)
    if found.end() < len(text) and text[found.end()] in "[]":
        raise HostError(text, found.end(), f"unbalanced {text[found.end()]!r}", where)
    return _expand(text, at, found.end(), where), found.end()


def _expand(text: str, start: int, end: int, where: str) -> list[str]:
    """Expand the ranges of text[start:end], the leftmost varying slowest."""
    names = [""]
    at = start
    while at < end:
        close = text.find("]", at, end) if text[at] == "[" else -1
        if close >= 0:
            choices = _parse_range(text, at + 1, close, where)
            at = close + 1
        else:
            stop = text.find("[", at, end)
            stop = end if stop < 0 else stop
            choices = [text[at:stop]]
            at = stop
        if len(names) * len(choices) > MAX_HOSTS:
            raise HostError(text, start, f"the ranges give more than {MAX_HOSTS} hosts", where)
        names = [name + choice for name in names for choice in choices]
    return names


def _parse_range(text: str, at: int, end: int, where: str) -> list[str]:
    choices: list[str] = []
    while True:
        found = _RANGE.match(text, at, end)
        if not found:
            raise HostError(text, at, "expected a number or a range such as 1-4", where)
        first, last = found.group(1), found.group(2) or found.group(1)
        if int(last) < int(first):
            raise HostError(text, at, f"the range {first}-{last} runs backwards", where)
        if int(last) - int(first) >= MAX_HOSTS:
            raise HostError(text, at, f"the range {first}-{last} gives more than {MAX_HOSTS} hosts", where)
        choices += [str(i).zfill(len(first)) for i in range(int(first), int(last) + 1)]
        at = found.end()
        if at == end:
            return choices
        if text[at] != ",":
            raise HostError(text, at, f"expected ',' or ']', found {text[at]!r}", where)
        at += 1


def _parse_slots(text: str, at: int, where: str) -> tuple[int, int]:
    found = _SLOTS.match(text, at)
    if not found:
        if at < len(text) and text[at] == ":":
            raise HostError(text, at + 1, "expected the number of slots", where)
        return 1, at
    digits = found.group(1) or found.group(2)
    slots = int(digits) if len(digits) < 10 else MAX_SLOTS + 1
    if not 1 <= slots <= MAX_SLOTS:
        raise HostError(text, found.end() - len(digits), f"slots must be 1 to {MAX_SLOTS}", where)
    return slots, found.end()


def _unique(hosts: list[Host], text: str, where: str) -> tuple[Host, ...]:
    names = [host.name for host in hosts]
    if len(set(names)) != len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise HostError(text, max(text.rfind(twice), 0), f"host {twice!r} is named twice", where)
    return tuple(hosts)


def used(hosts: tuple[Host, ...], size: int) -> list[Host]:
    """The hosts that size ranks fill in order, with the number of ranks on each."""
    found = []
    for host in hosts:
        if size > 0:
            found.append(Host(host.name, min(host.slots, size)))
        size -= host.slots
    return found


def merge_local(hosts: tuple[Host, ...], is_local: Callable[[str], bool], own: str) -> tuple[Host, ...]:
    """This machine's names (localhost, 127.0.0.1) are one host, called by its own name."""
    slots: dict[str, int] = {}
    for host in hosts:
        name = own if is_local(host.name) else host.name
        slots[name] = slots.get(name, 0) + host.slots
    return tuple(Host(name, count) for name, count in slots.items())
