"""What becomes of a training when a rank dies."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

if importlib.util.find_spec("tensorflow") is None:  # not imported: that takes seconds
    pytest.skip("TensorFlow is not installed", allow_module_level=True)
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}

DYING = """
import os, signal, time
import keras, numpy as np, tensorflow as tf
import lwcc_tf.keras as hvd
hvd.init()
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(64), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", jit_compile=False)

class Die(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 3 and hvd.rank() == 1:
            with open("died", "w") as file:
                file.write(str(time.time()))
            if "RAISES" in os.environ:
                raise ZeroDivisionError("on purpose")
            os.kill(os.getpid(), signal.SIGKILL)

try:
    model.fit(np.ones((4000, 4)), np.ones((4000, 1)), batch_size=4, verbose=0, callbacks=[Die()])
except tf.errors.OpError as error:
    late = time.time() - float(open("died").read())
    print(f"held: rank {hvd.rank()} {type(error).__name__} names={'rank 1' in str(error)} late={late:.3f}", flush=True)
    raise SystemExit(7)
"""


@pytest.mark.parametrize("how", ["killed", "raises"])
def test_a_dead_rank_ends_the_fit_of_the_others_and_is_named(run_ranks: Any, how: str) -> None:
    env = {**QUIET, "RAISES": "1"} if how == "raises" else QUIET
    done = run_ranks(2, DYING, prelude=False, code=None, env=env, timeout=120)
    assert done.code != 0 and "held: rank 0" in done.out, done.tail()
    kind = "AbortedError" if how == "killed" else "Error"
    (line,) = [line for line in done.out.splitlines() if "held: rank 0" in line]
    assert kind in line and "names=True" in line, line
