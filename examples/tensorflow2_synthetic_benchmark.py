"""Images per second on random images: what the communication costs, without any data loading.

lwccrun -np 2 examples/tensorflow2_synthetic_benchmark.py
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras
import tensorflow as tf

import lwcc_tf as lwcc


def block(x: keras.KerasTensor, channels: int, stride: int) -> keras.KerasTensor:
    """Two convolutions around which the input passes by."""
    layers = keras.layers
    inner = layers.Conv2D(channels, 3, stride, padding="same", use_bias=False)(x)
    inner = layers.ReLU()(layers.BatchNormalization()(inner))
    inner = layers.BatchNormalization()(layers.Conv2D(channels, 3, padding="same", use_bias=False)(inner))
    around = layers.Conv2D(channels, 1, stride, use_bias=False)(x)
    return layers.ReLU()(layers.Add()([inner, around]))


def network(width: int, depth: int) -> keras.Model:
    """Return a residual network for 32x32 images."""
    given = keras.Input((32, 32, 3))
    x = keras.layers.Conv2D(width, 3, padding="same")(given)
    for stage in range(3):
        for i in range(depth):
            x = block(x, width << stage, 2 if stage and i == 0 else 1)
    return keras.Model(given, keras.layers.Dense(1000)(keras.layers.GlobalAveragePooling2D()(x)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=32, help="channels of the first stage (default %(default)s)")
    parser.add_argument("--depth", type=int, default=2, help="blocks of each stage (default %(default)s)")
    parser.add_argument("--batch-size", type=int, default=8, help="images of each rank (default %(default)s)")
    parser.add_argument("--num-warmup-batches", type=int, default=5, help="default %(default)s")
    parser.add_argument("--num-batches-per-iter", type=int, default=5, help="default %(default)s")
    parser.add_argument("--num-iters", type=int, default=8, help="default %(default)s")
    parser.add_argument("--fp16-allreduce", action="store_true", help="compress gradients to 16 bits on the wire")
    args = parser.parse_args()

    lwcc.init()
    rank, size = lwcc.rank(), lwcc.size()
    tf.random.set_seed(rank)
    model = network(args.width, args.depth)
    compression = lwcc.Compression.fp16 if args.fp16_allreduce else lwcc.Compression.none
    optimizer = lwcc.DistributedOptimizer(keras.optimizers.SGD(0.01 * size), compression=compression)
    optimizer.build(model.trainable_variables)
    lwcc.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)
    images = tf.random.normal([args.batch_size, 32, 32, 3])
    labels = tf.random.uniform([args.batch_size], maxval=1000, dtype=tf.int64)
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = entropy(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    if rank == 0:
        print(f"{model.count_params()} parameters, batch size {args.batch_size} on each of {size} ranks")
    for _ in range(args.num_warmup_batches):
        step()
    speeds = []
    for i in range(args.num_iters):
        start = time.perf_counter()
        for _ in range(args.num_batches_per_iter):
            step()
        speeds.append(args.batch_size * args.num_batches_per_iter / (time.perf_counter() - start))
        if rank == 0:
            print(f"Iter #{i}: {speeds[-1]:.1f} img/sec per rank", flush=True)

    sums = tf.stack([tf.reduce_sum(tf.cast(tf.convert_to_tensor(v), tf.float64)) for v in model.trainable_variables])
    everybody = lwcc.allgather(sums[None])
    equal = bool(tf.reduce_all(everybody == everybody[0]))
    if rank == 0:
        mean, spread = statistics.fmean(speeds), 1.96 * statistics.pstdev(speeds)
        print(f"Img/sec per rank: {mean:.1f} +-{spread:.1f}")
        print(f"Total img/sec on {size} ranks: {size * mean:.1f} +-{size * spread:.1f}")
        print(f"replicas equal: {'yes' if equal else 'NO'}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
