"""TensorFlow: what one allreduce in a graph costs beside a copy, and training against MultiWorkerMirroredStrategy.

python benchmarks/bench_tf.py [--record]      # the whole comparison: rounds of both, in turns
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, Callable

from bench_allreduce import cpu_name

ROUNDS, STEPS, BATCH, WIDTH = 5, 60, 32, 512
TITLES = {"lwcc": "lwcc_tf.DistributedOptimizer", "mwms": "MultiWorkerMirroredStrategy, ring over gRPC"}
MARKS = "<!-- bench_tf: begin -->", "<!-- bench_tf: end -->"


def op_overhead() -> None:
    """Print us per op for chains of 64 allreduces of 1024 floats on one rank, and of 64 copies, in turns."""
    import tensorflow as tf

    import lwcc_tf as lwcc

    lwcc.init()

    def chain(op: Callable[[Any], Any]) -> Any:
        @tf.function
        def run(x: tf.Tensor) -> tf.Tensor:
            for _ in range(64):
                x = op(x)
            return x

        return run

    copies, reductions = (
        chain(lambda x: tf.raw_ops.Snapshot(input=x)),
        chain(lambda x: lwcc.allreduce(x, op=lwcc.Sum)),
    )
    given, times = tf.ones([1024]), {copies: [], reductions: []}
    for _ in range(1000):
        for function, found in times.items():
            start = time.perf_counter()
            function(given)
            found.append((time.perf_counter() - start) / 64 * 1e6)
    copy, reduction = (statistics.median(found[20:]) for found in times.values())
    over = statistics.median(b - a for a, b in zip(*times.values()))
    print(f"allreduce of 1024 floats, size 1: {reduction:.2f} us; Snapshot {copy:.2f} us; over it {over:.2f} us")


def training(make_optimizer: Callable[[Any], Any], run: Callable[[Any], Any], scope: Any) -> float:
    """Return samples per second and rank of a network of 1.06 million parameters."""
    import keras
    import tensorflow as tf

    layers = keras.layers
    with scope:
        hidden = [layers.Dense(WIDTH, activation="relu") for _ in range(4)]
        model = keras.Sequential([keras.Input((WIDTH,)), *hidden, layers.Dense(10)])
        optimizer = make_optimizer(keras.optimizers.SGD(0.01))
        optimizer.build(model.trainable_variables)
    x, y = tf.random.normal([BATCH, WIDTH]), tf.random.uniform([BATCH], maxval=10, dtype=tf.int64)

    def replica() -> None:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    step = tf.function(lambda: run(replica))
    for _ in range(10):
        step()
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    return STEPS * BATCH / (time.perf_counter() - start)


def worker(kind: str) -> None:
    import contextlib

    if kind == "lwcc":
        import lwcc_tf as lwcc

        lwcc.init()
        speed = training(lwcc.DistributedOptimizer, lambda replica: replica(), contextlib.nullcontext())
    else:
        import tensorflow as tf

        ring = tf.distribute.experimental.CommunicationImplementation.RING
        options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        speed = training(lambda optimizer: optimizer, strategy.run, strategy.scope())
    print(f"samples/s per rank: {speed:.1f}", flush=True)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def slowest(outputs: list[str]) -> float:
    return min(float(speed) for text in outputs for speed in re.findall(r"samples/s per rank: ([\d.]+)", text))


def once(kind: str) -> float:
    """Run two ranks; return the slower one's speed."""
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, os.path.abspath(__file__), "--worker", kind]
    if kind == "lwcc":
        launch = [sys.executable, "-m", "lwcc.launcher", "-np", "2", *command[1:]]
        return slowest(
            [subprocess.run(launch, env=env, capture_output=True, text=True, check=True, timeout=300).stdout]
        )
    places = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    running = []
    for index in range(2):
        task = {"cluster": {"worker": places}, "task": {"type": "worker", "index": index}}
        mine = {**env, "TF_CONFIG": json.dumps(task)}
        running.append(
            subprocess.Popen(command, env=mine, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        )
    return slowest([process.communicate(timeout=300)[0] for process in running])


def table(overhead: str, speeds: dict[str, list[float]]) -> str:
    """Return the section of benchmarks/README.md, without its heading."""
    ratios = [a / b for a, b in zip(speeds["lwcc"], speeds["mwms"])]
    lines = ["| | samples/s of a rank, median (min-max over rounds) |", "|---|---|"]
    for kind, found in speeds.items():
        lines.append(f"| {TITLES[kind]} | {statistics.median(found):.0f} ({min(found):.0f}-{max(found):.0f}) |")
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    how = f"`python benchmarks/bench_tf.py --record`, {len(ratios)} rounds on {os.cpu_count()} cores ({cpu_name()})"
    lines += [f"| ratio of a round | {spread} |", "", f"One op in a graph: {overhead}"]
    return "\n".join([f"{how}, TensorFlow {version('tensorflow-cpu')}.", "", *lines])


def record(text: str) -> None:
    """Put the table between its marks in benchmarks/README.md."""
    path = Path(__file__).with_name("README.md")
    head, begin, rest = path.read_text(encoding="utf-8").partition(MARKS[0])
    _, end, tail = rest.partition(MARKS[1])
    if not begin or not end:
        raise ValueError(f"{path} lacks the marks {' and '.join(MARKS)}")
    path.write_text(f"{head}{begin}\n{text}\n{end}{tail}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", choices=("op", "lwcc", "mwms"), help="be one process of a measurement")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="default %(default)s")
    parser.add_argument("--record", action="store_true", help="write the table into benchmarks/README.md")
    args = parser.parse_args()
    if args.worker == "op":
        op_overhead()
        return 0
    if args.worker:
        worker(args.worker)
        return 0
    command = [sys.executable, os.path.abspath(__file__), "--worker", "op"]
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    overhead = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    print(overhead, flush=True)
    speeds: dict[str, list[float]] = {"lwcc": [], "mwms": []}
    for number in range(args.rounds):
        for kind, found in speeds.items():
            found.append(once(kind))
        latest = ", ".join(f"{kind} {found[-1]:.0f}" for kind, found in speeds.items())
        print(f"round {number + 1}: {latest}", flush=True)
    text = table(overhead, speeds)
    print(text)
    if args.record:
        record(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
