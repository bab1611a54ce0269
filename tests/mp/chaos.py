"""Kill a random rank at a random moment, many times: nothing hangs, no sum is wrong, every survivor names the dead.

    python tests/mp/chaos.py --kills 100 [--np 4] [--seed N]

Each round is a job of its own under the launcher. Its ranks reduce gradients of known sums, gather and broadcast;
a timer thread in the victim kills it, whatever it is doing then. A survivor reports what it raised, and any wrong
result.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

DEADLINE_S = 60.0  # of one round; a hang
RANK = """
import json, os, random, signal, sys, threading, time
from pathlib import Path
import numpy as np
import lwcc

out, victim, delay = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
lwcc.init()
rank, size = lwcc.rank(), lwcc.size()
report = {"rank": rank, "pid": os.getpid(), "wrong": 0, "raised": "", "lost": -1}
shapes = [(7,), (1000,), (64, 33), (200_000,), (1,)]

def step(k):
    mine = [np.full(s, rank + k, np.float32) for s in shapes]
    tickets = [lwcc.allreduce_async(a, op=lwcc.Sum, name=f"g{i}") for i, a in enumerate(mine)]
    want = size * k + size * (size - 1) / 2
    for ticket in tickets:
        report["wrong"] += int((ticket.wait() != want).any())
    rows = lwcc.allgather(np.full((1, 300_000), rank + k, np.float32), name="rows")
    report["wrong"] += int((rows != np.arange(k, k + size, dtype=np.float32)[:, None]).any())
    sent = lwcc.broadcast(np.full(100_000, rank + k, np.float32), root_rank=k % size, name="sent")
    report["wrong"] += int((sent != k % size + k).any())

def say():
    part = out / f"{rank}.part"
    part.write_text(json.dumps(report))
    part.rename(out / f"{rank}.json")

step(0)
say()
lwcc.barrier()
if rank == victim:
    timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()
try:
    k = 1
    while True:
        step(k)
        k += 1
except lwcc.PeerLost as error:
    report.update(raised="PeerLost", lost=error.rank, text=str(error))
except BaseException as error:
    report.update(raised=type(error).__name__, text=str(error))
report["steps"] = k
say()
sys.exit(1)
"""


def gone(pid: int) -> bool:
    """Tell whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def segments() -> set[str]:
    """Return what shared memory with our name is in sight."""
    return {p.name for p in Path("/dev/shm").glob("*lwcc*")} if Path("/dev/shm").is_dir() else set()


def one_round(size: int, victim: int, delay: float, folder: Path) -> list[str]:
    """Run one job and return what was wrong with it: nothing, if all is well."""
    script = folder / "rank.py"
    script.write_text(RANK)
    before = segments()
    command = [sys.executable, "-m", "lwcc.launcher", "-np", str(size), str(script)]
    command += [str(folder), str(victim), f"{delay:.4f}"]
    job = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    hung = False
    try:
        log, _ = job.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        hung = True
        os.killpg(job.pid, signal.SIGTERM)
        log, _ = job.communicate()
    reports = [json.loads(p.read_text()) for p in sorted(folder.glob("*.json"))]
    wrong = ["hung"] if hung else []
    wrong += judge(reports, size, victim)
    wrong += [f"rank {r['rank']} (pid {r['pid']}) is left over" for r in reports if not gone(r["pid"])]
    wrong += [f"segment {name} is left over" for name in sorted(segments() - before)]
    if job.returncode != 128 + signal.SIGKILL:
        wrong.append(f"the launcher ended with {job.returncode}, expected {128 + signal.SIGKILL}")
    return [*wrong, log] if wrong else []


def judge(reports: list[dict[str, Any]], size: int, victim: int) -> list[str]:
    """Return what is wrong with the ranks' reports."""
    found = [f"only {len(reports)} of {size} ranks began"] if len(reports) != size else []
    for r in reports:
        if r["wrong"]:
            found.append(f"rank {r['rank']}: {r['wrong']} wrong sums")
        if r["rank"] != victim and (r["raised"] != "PeerLost" or r["lost"] != victim):
            found.append(f"rank {r['rank']} raised {r['raised'] or 'nothing'} ({r.get('text')}), rank {victim} is dead")
    return found


def run(kills: int, size: int, seed: int) -> int:
    """Run the rounds, printing one line for each bad one; return how many were bad."""
    chance = random.Random(seed)
    bad, began = 0, time.monotonic()
    for number in range(kills):
        victim, delay = chance.randrange(size), chance.random() ** 2 * 0.5
        with tempfile.TemporaryDirectory(prefix="lwcc-chaos-") as folder:
            wrong = one_round(size, victim, delay, Path(folder))
        if wrong:
            bad += 1
            print(f"round {number}: rank {victim} killed after {delay:.3f} s:", *wrong, sep="\n  ", flush=True)
    print(f"seed {seed}: {kills} kills at np={size}, {bad} bad, {time.monotonic() - began:.0f} s")
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--np", type=int, default=4)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    args = parser.parse_args()
    return 1 if run(args.kills, args.np, args.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
