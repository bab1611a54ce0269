"""DistributedOptimizer for Keras: the user's optimizer, which steps on gradients reduced over the ranks."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Optional

from lwcc import context
from lwcc.ops import Op, whole
from lwcc_tf.keras import backend
from lwcc_tf.options import Groups, Options, key

if TYPE_CHECKING:
    from lwcc.authoring import Choice
    from lwcc.process_sets import ProcessSet


class _State:
    """What a distributed optimizer has beside the given one's state; kept out of Keras's sight."""

    def __init__(self, kind: type, options: Options, passes: int, average: bool) -> None:
        framework = backend.load()
        # not counted: a rank may make more of them, and what is in use at once gets numbers in its function
        self.reducer = framework.Reducer(f"optimizer.{kind.__name__}", options)
        self._new_accumulator = (lambda: framework.Accumulator(passes, average)) if passes > 1 else None
        self._accumulators: dict[tuple[int, ...], Any] = {}  # by what they accumulate for, in its order
        self.adaptive = options.op == Op.ADASUM
        self._snapshot = framework.snapshot

    def run(self, grads: list[Any], variables: list[Any], take: Any) -> None:
        """Take a step at once or, when passes are accumulated, with the last of those for the same variables."""
        if self._new_accumulator is None:
            self.step(grads, variables, take)
            return
        which = tuple(key(variable) for variable in variables)
        found = self._accumulators.get(which) or self._accumulators.setdefault(which, self._new_accumulator())
        found.run(grads, variables, lambda sums: self.step(sums, variables, take))

    def step(self, grads: list[Any], variables: list[Any], take: Any) -> None:
        """Call `take` with the reduced gradients; or with the rank's own, and then reduce what it changed."""
        if not self.adaptive:
            take(self.reducer.reduce(grads, variables))
            return
        shared = [variable for variable in variables if key(variable) not in self.reducer.local]
        before = [self._snapshot(variable) for variable in shared]
        take(list(grads))
        steps = [self._snapshot(variable) - old for variable, old in zip(shared, before)]
        for variable, old, total in zip(shared, before, self.reducer.reduce(steps, shared)):
            variable.assign(old + total)


class Distributed:
    """What `DistributedOptimizer` adds to an optimizer's class. All other methods are those of that class."""

    @classmethod
    def from_config(cls, *args: Any, **kwargs: Any) -> Any:
        """Return an optimizer of the given one's class, not distributed: its configuration is of that."""
        return cls.__bases__[1].from_config(*args, **kwargs)  # type: ignore[attr-defined]

    def register_local_var(self, variable: Any) -> None:
        """Keep the gradient of this variable on its rank, scaled by 1 / ranks (see `scale_local_gradients`)."""
        self.__dict__["_lwcc"].reducer.local.add(key(variable))


class _Keras3(Distributed):
    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Reduce the gradients over the ranks, then do what the optimizer's own class does.

        Raises:
            tf.errors.OpError or LwccError: a reduction failed.
        """
        this: Any = self
        variables = list(this._trainable_variables if trainable_variables is None else trainable_variables)
        if not this.built:
            this.build(variables)  # not in the branch of a graph
        state, apply = this.__dict__["_lwcc"], super().apply  # type: ignore[misc]
        state.run(list(grads), variables, lambda reduced: apply(reduced, trainable_variables=variables))


class _Keras2(Distributed):
    def apply_gradients(self, grads_and_vars: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        """Reduce the gradients over the ranks, then do what the optimizer's own class does.

        Raises:
            tf.errors.OpError: a reduction failed.
        """
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        this: Any = self
        if hasattr(this, "build"):
            this.build(variables)
        state, apply = this.__dict__["_lwcc"], super().apply_gradients  # type: ignore[misc]
        state.run(
            [grad for grad, _ in pairs], variables, lambda reduced: apply(zip(reduced, variables), *args, **kwargs)
        )
        return this.iterations


def build(optimizer: Any, variables: list[Any]) -> None:
    """Make the variables that an optimizer keeps for those of a model, if there are some and it has not done so."""
    kind = type(optimizer)
    if not variables or getattr(optimizer, "built", False):
        return
    inner = optimizer if hasattr(kind, "apply") else getattr(optimizer, "inner_optimizer", optimizer)
    make = getattr(inner, "build", None) or getattr(inner, "_create_all_weights", None)  # the latter: legacy ones
    if make is not None:
        make(variables)


def _distributed(kind: Any) -> Any:
    """Return the subclass of an optimizer's class that reduces gradients.

    It has the name of the given class: that is what Keras writes when it saves the optimizer.
    """
    bases = (_Keras3 if hasattr(kind, "apply") else _Keras2, kind)
    made = type(kind)(kind.__name__, bases, {"__module__": kind.__module__, "__qualname__": kind.__qualname__})
    saving = _home(kind).saving
    package, registered, name = saving.get_registered_name(kind).rpartition(">")
    for cls in (made, kind) if registered else ():  # both are saved under the name; the latter is what it loads
        saving.register_keras_serializable(package, name)(cls)
    return made


def _prepare(model: Any) -> None:
    """Make a model ready to be trained with a distributed optimizer.

    Loss scaling, which Keras puts around the optimizer for mixed precision, comes to decide on *reduced* gradients, so
    that all ranks skip the same steps; and XLA, which Keras takes by default, is switched off: it knows no op of ours.
    """
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", None)
    if isinstance(inner, Distributed) and optimizer is not None:
        optimizer.__dict__["_lwcc"] = inner.__dict__.pop("_lwcc")
        object.__setattr__(inner, "__class__", type(inner).__bases__[1])
        object.__setattr__(optimizer, "__class__", _distributed(type(optimizer)))
    if isinstance(optimizer, Distributed) and backend.name() == "tensorflow" and model.jit_compile:
        model.jit_compile = False
        if context.is_initialized() and context.rank() == 0:
            _warn_once()


@functools.cache
def _watch_models(keras: Any) -> None:
    """Have a Keras call `_prepare` before it makes the training function of a model."""
    make = keras.Model.make_train_function

    @functools.wraps(make)
    def make_train_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        _prepare(self)
        return make(self, *args, **kwargs)

    keras.Model.make_train_function = make_train_function


def _home(kind: Any) -> Any:
    """Return the Keras that an optimizer's class is of."""
    roots = [base.__module__.partition(".")[0] for base in kind.__mro__]
    return importlib.import_module("tf_keras" if "tf_keras" in roots else "keras")


@functools.cache
def _warn_once() -> None:
    warnings.warn(
        "lwcc: models with a distributed optimizer are trained without XLA, which cannot compile collectives; "
        "compile(jit_compile=False) says so yourself",
        UserWarning, stacklevel=2,
    )  # fmt: skip


def DistributedOptimizer(
    optimizer: Any, name: Optional[str] = None, device_dense: str = "", device_sparse: str = "",
    compression: Any = None, sparse_as_dense: bool = False, gradient_predivide_factor: float = 1.0,
    op: int = Op.AVERAGE, backward_passes_per_step: int = 1, average_aggregated_gradients: bool = False,
    num_groups: int = 0, groups: Groups = None, process_set: Optional[ProcessSet] = None,
    scale_local_gradients: bool = True, *, algorithm: Optional[Choice] = None,
) -> Any:  # fmt: skip
    """Return an optimizer of a subclass of the given one's class that steps on gradients reduced over the ranks.

    It shares its state with the given one, which is not to be used any more; it is saved under the given one's class,
    so that saved models load without LWCC. In a compiled `fit` gradients are reduced while the backward pass goes on.
    In a loop of one's own with loss scaling, wrap the LossScaleOptimizer, so that the ranks skip the same steps.

    Args:
        optimizer: of Keras 3 (backend tensorflow or torch) or tf_keras, built or not.
        name: accepted for compatibility; so are `device_dense` and `device_sparse`.
        device_dense: as `name`.
        device_sparse: as `name`.
        compression: `Compression.fp16` and `bf16` halve the bytes of float32 gradients on the wire.
        sparse_as_dense: make tf.IndexedSlices dense; else their rows are gathered.
        gradient_predivide_factor: Average as a division by this before the sum, and by size / this after it.
        op: Average or Sum of the gradients; or Adasum, an adaptive sum of the steps that the ranks would take alone:
            those that point the same way are averaged, those at right angles added, variable by variable.
        backward_passes_per_step: gradients of so many calls are summed locally, then reduced once for one step; calls
            for other variables count apart.
        average_aggregated_gradients: divide that sum by their number.
        num_groups: deprecated, see `groups`.
        groups: lists of variables, or a number of groups to make, that are reduced together.
        process_set: the ranks that take part.
        scale_local_gradients: scale the gradients of variables registered as local by 1 / ranks.
        algorithm: what reduces dense gradients, see `lwcc.allreduce`; default what the set uses (`lwcc.use`).

    Raises:
        TypeError: no optimizer of Keras.
        ValueError: distributed already, or a wrong argument.
    """
    if isinstance(optimizer, Distributed):
        raise ValueError("lwcc: this optimizer is distributed already")
    kind = type(optimizer)
    if not hasattr(kind, "apply_gradients") or not hasattr(kind, "from_config"):
        raise TypeError(
            f"lwcc: {kind.__module__}.{kind.__qualname__} is no optimizer of Keras; with others use "
            "DistributedGradientTape"
        )
    if whole(backward_passes_per_step, "backward_passes_per_step") < 1:
        raise ValueError(f"lwcc: backward_passes_per_step={backward_passes_per_step}, must be at least 1")
    if num_groups:
        warnings.warn("num_groups is deprecated, use groups", DeprecationWarning, stacklevel=2)
    wanted = groups if groups is not None else num_groups
    options = Options(
        compression, sparse_as_dense, op, gradient_predivide_factor, wanted, process_set, scale_local_gradients,
        algorithm,
    )  # fmt: skip
    _watch_models(_home(kind))
    made: Any = object.__new__(_distributed(kind))
    object.__setattr__(made, "__dict__", optimizer.__dict__)  # past Keras, which tracks what is set
    made.__dict__["_lwcc"] = _State(kind, options.checked(), backward_passes_per_step, average_aggregated_gradients)
    return made


def PartialDistributedOptimizer(optimizer: Any, *args: Any, local_layers: Any = None, **kwargs: Any) -> Any:
    """Return a `DistributedOptimizer` that leaves the gradients of some layers on their rank.

    Args:
        optimizer: as for `DistributedOptimizer`.
        *args: likewise.
        local_layers: a built Keras layer, or several.
        **kwargs: likewise.

    Raises:
        ValueError: a layer without variables: it is to be built first.
    """
    made = DistributedOptimizer(optimizer, *args, **kwargs)
    layers = [] if local_layers is None else local_layers if isinstance(local_layers, (list, tuple)) else [local_layers]
    for layer in layers:
        if not getattr(layer, "trainable_weights", None):
            raise ValueError(f"lwcc: local layer {layer!r} has no trainable variables (yet); build the model first")
        for variable in layer.trainable_weights:
            made.register_local_var(variable)
    return made
