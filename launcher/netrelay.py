"""The link of a node of `--net` with a delay or loss, where the kernel has no netem:
``python -I -S netrelay.py LAUNCHER_PID DEVICE DELAY_NS LOSS SEED``, run in the node's network namespace.

Makes a TAP device eth0 here and one named DEVICE in the launcher's namespace, and carries frames between them; those
that leave the node wait for the delay, or are lost by chance. Without loss, frames are the kernel's large ones, which
it has yet to cut. Ends with the launcher. Stands alone: it is run as a file and must start fast.
"""

import collections
import ctypes
import fcntl
import os
import random
import select
import signal
import struct
import sys
import time

_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_TAP, _NO_PACKET_INFO, _VNET_HEADER = 0x2, 0x1000, 0x4000
_CSUM_AND_TSO = 0x1 | 0x2 | 0x4 | 0x8
_FRAME_NBYTES = (64 << 10) + 256
MOST_WAITING = 20000  # frames; more are dropped, as by any queue


def make_tap(name: str, large: bool) -> int:
    """Make a TAP device in this thread's network namespace; return its descriptor."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    flags = _TAP | _NO_PACKET_INFO | (_VNET_HEADER if large else 0)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    if large:
        fcntl.ioctl(fd, _TUNSETOFFLOAD, _CSUM_AND_TSO)
    return fd


def carry(source: int, target: int) -> None:
    """Pass on what has come, at once."""
    for _ in range(64):
        try:
            frame = os.read(source, _FRAME_NBYTES)
        except OSError:  # nothing more, or the device is down
            return
        send(target, frame)


def send(target: int, frame: bytes) -> None:
    """Hand a frame to the kernel; one that it refuses is lost, as on a wire."""
    try:
        os.write(target, frame)
    except OSError:
        pass


class Delay:
    """Frames under way from `source` to `target`."""

    def __init__(self, source: int, target: int, delay_ns: int, loss: float, seed: int) -> None:
        self.source, self.target, self.delay_ns, self.loss = source, target, delay_ns, loss
        self.random = random.Random(seed)
        self.waiting: collections.deque[tuple[int, bytes]] = collections.deque()

    def take(self) -> None:
        """Read what has come, and note when it is due."""
        for _ in range(64):
            try:
                frame = os.read(self.source, _FRAME_NBYTES)
            except OSError:
                return
            lost = self.loss and self.random.random() < self.loss
            if not lost and len(self.waiting) < MOST_WAITING:
                self.waiting.append((time.monotonic_ns() + self.delay_ns, frame))

    def pass_due(self) -> "float | None":
        """Send what is due; return the seconds until the next one is, or None."""
        while self.waiting:
            left = self.waiting[0][0] - time.monotonic_ns()
            if left > 0:
                return left * 1e-9
            send(self.target, self.waiting.popleft()[1])
        return None


def main() -> None:
    """Make both devices, say so, and carry frames until the launcher ends."""
    launcher, device, delay_ns, loss, seed = sys.argv[1:6]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # the launcher is still at work then
    large = float(loss) == 0.0
    inside = make_tap("eth0", large)
    hub = os.open(f"/proc/{launcher}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if os.getppid() != int(launcher) or libc.setns(hub, _CLONE_NEWNET):
        sys.exit(1)
    outside = make_tap(device, large)
    os.write(1, b"ready\n")
    out = Delay(inside, outside, int(delay_ns), float(loss), int(seed))
    while True:
        ready = select.select([inside, outside], [], [], out.pass_due())[0]
        if inside in ready:
            out.take()
        if outside in ready:
            carry(outside, inside)


if __name__ == "__main__":
    main()
