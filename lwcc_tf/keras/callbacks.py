"""Keras callbacks of distributed training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional, Union

import numpy as np

import lwcc
from lwcc import context, journal
from lwcc_tf.keras import backend
from lwcc_tf.keras.optimizer import build

if TYPE_CHECKING:
    import keras
else:
    keras = backend.keras_module()


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
    """Gives model and optimizer on all ranks the values of those on `root_rank`, before the first batch.

    The root alone may have loaded them: the optimizer's variables are made on the others. What a model or optimizer
    makes with the first batch only is broadcast after it. Ranks with different numbers of variables: `lwcc.Mismatch`.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        """`root_rank` is a global rank; `device` is accepted for compatibility; `local_variables` stay as they are."""
        super().__init__()
        self.root_rank = root_rank
        self.local_variables = {id(variable) for variable in local_variables or ()}
        self._known: set[int] = set()
        self._first = True

    def _broadcast(self) -> None:
        optimizer = getattr(self.model, "optimizer", None)
        try:
            found, trainable = list(self.model.variables), list(self.model.trainable_variables)
        except ValueError:  # tf_keras: a model without an Input makes its variables with the first batch
            found, trainable = [], []
        if optimizer is not None:  # one that a rank has loaded has its variables already
            build(optimizer, trainable)
        if optimizer is not None and getattr(optimizer, "built", True):
            found += optimizer.variables() if callable(optimizer.variables) else optimizer.variables
        fresh = {id(v): v for v in found if id(v) not in self._known and id(v) not in self.local_variables}
        self._known.update(fresh)
        counts = lwcc.allgather(np.array([len(fresh)]), name="BroadcastGlobalVariablesCallback").tolist()
        if len(set(counts)) > 1:
            odd = next(rank for rank, count in enumerate(counts) if count != counts[0])
            raise lwcc.Mismatch(
                f"lwcc: BroadcastGlobalVariablesCallback: rank 0 has {counts[0]} variables of model and optimizer to "
                f"broadcast, rank {odd} has {counts[odd]}; build the same model and optimizer on every rank"
            )
        if fresh:
            backend.load().broadcast_variables(fresh.values(), self.root_rank)

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcast what there is."""
        self._known.clear()
        self._broadcast()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Look again after the next batch, whose number is not 0 where `steps_per_execution` is more than 1."""
        self._first = True

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast what has come since; note the step for a comparison."""
        if self._first:
            self._broadcast()
        self._first = False
        journal.step()


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
    """Averages each epoch's metrics over the ranks. To be listed before callbacks that look at metrics."""

    def __init__(self, device: str = "") -> None:
        """`device` is accepted for compatibility."""
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Optional[dict[str, Any]] = None) -> None:
        """Replace the values in `logs`; every rank has the same metrics."""
        names = sorted(logs or ())
        if not logs or not names:
            return
        mean = lwcc.allreduce(np.array([float(logs[name]) for name in names]), name=f"metrics.{','.join(names)[:400]}")
        logs.update(zip(names, (float(value) for value in mean)))


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
    """Sets the learning rate to `initial_lr` times a multiplier, from one epoch to another."""

    def __init__(
        self, initial_lr: float, multiplier: Union[float, Callable[[float], float]], start_epoch: int = 0,
        end_epoch: Optional[int] = None, staircase: bool = True, momentum_correction: bool = True,
        steps_per_epoch: Optional[int] = None,
    ) -> None:  # fmt: skip
        """Choose the schedule.

        Args:
            initial_lr: the rate that the multiplier is for.
            multiplier: a number, or a function of the epoch.
            start_epoch: first epoch that this callback sets the rate of.
            end_epoch: first epoch that it no longer does.
            staircase: once in each epoch; else with each batch, for fractions of an epoch.
            momentum_correction: accepted for compatibility: Keras 3 keeps the momentum as a constant of its functions.
            steps_per_epoch: batches of an epoch; default: what `fit` counts.
        """
        super().__init__()
        self.initial_lr, self.start_epoch, self.end_epoch = initial_lr, start_epoch, end_epoch
        self.staircase = staircase or not callable(multiplier)
        self.steps_per_epoch = steps_per_epoch
        self.multiplier = multiplier if callable(multiplier) else (lambda epoch: float(multiplier))
        self.current_epoch = 0

    def _set(self, epoch: float) -> None:
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        self.model.optimizer.learning_rate = self.initial_lr * self.multiplier(epoch)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Set the rate of the epoch."""
        self.current_epoch = epoch
        self._set(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate of the batch, if it changes within epochs."""
        steps = self.steps_per_epoch or (self.params or {}).get("steps")
        if not self.staircase and steps:
            self._set(self.current_epoch + batch / steps)

    def on_epoch_end(self, epoch: int, logs: Optional[dict[str, Any]] = None) -> None:
        """Report the rate among the metrics."""
        if logs is not None:
            logs["lr"] = float(np.asarray(self.model.optimizer.learning_rate))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from `initial_lr` / ranks to `initial_lr` over the first epochs, with each batch."""

    def __init__(
        self, initial_lr: float, warmup_epochs: int = 5, momentum_correction: bool = True,
        steps_per_epoch: Optional[int] = None, verbose: int = 0,
    ) -> None:  # fmt: skip
        """As for `LearningRateScheduleCallback`; `verbose` 1 prints the rate when the rise is over, on rank 0."""
        ranks = context.size()

        def rise(epoch: float) -> float:
            return (1 + min(epoch / warmup_epochs, 1.0) * (ranks - 1)) / ranks

        super().__init__(initial_lr, rise, 0, warmup_epochs, False, steps_per_epoch=steps_per_epoch)
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Optional[dict[str, Any]] = None) -> None:
        """Go to the full rate after the last epoch of the rise."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1:
            self.model.optimizer.learning_rate = self.initial_lr
            if self.verbose and context.rank() == 0:
                print(f"Epoch {epoch + 1}: finished gradual learning rate warmup to {self.initial_lr:g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc, unused-ignore]
    """Saves the model with the best metric so far; on rank 0 alone, as the ranks' models are equal.

    List `MetricAverageCallback` before it, so that the metric is that of all ranks.
    """

    def __init__(
        self, monitor: str = "val_loss", verbose: int = 0, mode: str = "auto", save_freq: Any = "epoch",
        filepath: Any = "best.keras", **kwargs: Any,
    ) -> None:  # fmt: skip
        """Arguments are those of `keras.callbacks.ModelCheckpoint`."""
        super().__init__(
            filepath, monitor=monitor, verbose=verbose, save_best_only=True, mode=mode, save_freq=save_freq, **kwargs
        )

    def _save_model(self, *args: Any, **kwargs: Any) -> None:
        if context.rank() == 0:
            super()._save_model(*args, **kwargs)
