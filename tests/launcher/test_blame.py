"""Who is blamed when several processes of a job end in the same instant."""

from __future__ import annotations

from lwcc.launcher.blame import find_cause, order
from lwcc.launcher.mpicrew import LAUNCHER
from lwcc.launcher.output import Screen, Stream
from lwcc.launcher.remote import RemoteRank
from lwcc.launcher.spawn import Rank


class Ended(RemoteRank):
    """A rank that has ended; nothing else of it matters."""

    def __init__(self, number: int, status: int, err: str = "", stopped: bool = False) -> None:
        screen = Screen()
        streams = Stream(screen, 0, None, shown=False), Stream(screen, 1, None, shown=False)
        Rank.__init__(self, number, "a", 1, streams)
        self.status, self.stopped_by_us, self.died = status, stopped, self.born + 1
        self.err.feed(err.encode())


def test_the_cause_goes_before_its_consequences_and_the_launcher() -> None:
    killed, fell = Ended(1, -9), Ended(0, 1, "lwcc.errors.PeerLost: rank 1 is gone\n")
    lost, launcher = Ended(2, -9, stopped=True), Ended(LAUNCHER, 137)
    assert min((lost, launcher, fell, killed), key=order) is killed
    assert min((lost, launcher, fell), key=order) is fell
    assert min((lost, launcher), key=order) is launcher
    assert find_cause(launcher, [lost, fell, killed]) is killed
    assert find_cause(launcher, [lost]) is launcher
    assert find_cause(fell, [lost, fell]) is fell
