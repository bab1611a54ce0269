"""DistributedGradientTape: the user's tape, whose gradients are reduced over the ranks."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Optional

import tensorflow as tf

from lwcc.ops import Op
from lwcc_tf.compression import Compression, Compressor
from lwcc_tf.options import Groups, Options, key
from lwcc_tf.reduction import Reducer

if TYPE_CHECKING:
    from lwcc.authoring import Choice
    from lwcc.process_sets import ProcessSet


class _DistributedTape(tf.GradientTape):  # type: ignore[misc, unused-ignore]
    """What `DistributedGradientTape` adds to a tape; it shares the state of the given one."""

    _lwcc: Options
    _lwcc_local: set[int]

    def register_local_source(self, source: Any) -> None:
        """Keep the gradient of this variable on its rank, scaled by 1 / ranks (see `scale_local_gradients`)."""
        self._lwcc_local.add(key(source))

    def get_local_and_global_gradients(self, grads: Any, sources: Any) -> tuple[list[Any], list[Any]]:
        """Return the gradients of local sources, and those of the others."""
        pairs = list(zip(tf.nest.flatten(grads), tf.nest.flatten(sources)))
        local = [grad for grad, source in pairs if key(source) in self._lwcc_local]
        return local, [grad for grad, source in pairs if key(source) not in self._lwcc_local]

    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the gradients as the given tape does, and reduce them over the ranks.

        Raises:
            tf.errors.OpError: see `lwcc_tf.ops`.
        """
        grads = super().gradient(target, sources, *args, **kwargs)
        flat = tf.nest.flatten(sources)
        found = list(_walk(sources, grads))
        reducer = Reducer(f"tape.{len(flat)}", self._lwcc)
        reducer.local = self._lwcc_local
        reduced = reducer.reduce(found, flat)
        return reduced[0] if not tf.nest.is_nested(sources) else tf.nest.pack_sequence_as(sources, reduced)


def _walk(sources: Any, grads: Any) -> Iterable[Any]:
    """Flatten gradients as tf.nest does their sources, so that tf.IndexedSlices and None stay whole."""
    if isinstance(sources, dict):
        for name in sorted(sources):
            yield from _walk(sources[name], grads[name])
    elif isinstance(sources, (list, tuple)):
        for source, grad in zip(sources, grads):
            yield from _walk(source, grad)
    else:
        yield grads


def DistributedGradientTape(
    gradtape: tf.GradientTape, device_dense: str = "", device_sparse: str = "",
    compression: type[Compressor] = Compression.none, sparse_as_dense: bool = False, op: int = Op.AVERAGE,
    gradient_predivide_factor: float = 1.0, num_groups: int = 0, groups: Groups = None,
    process_set: Optional[ProcessSet] = None, scale_local_gradients: bool = True, *,
    algorithm: Optional[Choice] = None,
) -> Any:  # fmt: skip
    """Return a tape whose `gradient` reduces what the given tape computes.

    Args:
        gradtape: recorded already, or to be entered: `with DistributedGradientTape(tf.GradientTape()) as tape`.
        device_dense: accepted for compatibility; so is `device_sparse`.
        device_sparse: as `device_dense`.
        compression: `Compression.fp16` and `bf16` halve the bytes of float32 gradients on the wire.
        sparse_as_dense: make tf.IndexedSlices dense; else their rows are gathered.
        op: Average or Sum; or Adasum, adaptive for each gradient, where tf.IndexedSlices are made dense.
        gradient_predivide_factor: Average as a division by this before the sum, and by size / this after it.
        num_groups: deprecated, see `groups`.
        groups: lists of variables, or a number of groups to make, that are reduced together.
        process_set: the ranks that take part.
        scale_local_gradients: scale the gradients that stay on their rank by 1 / ranks.
        algorithm: what reduces dense gradients, see `lwcc.allreduce`; default what the set uses (`lwcc.use`).

    Raises:
        ValueError: distributed already, or a wrong argument.
    """
    if num_groups:
        warnings.warn("num_groups is deprecated, use groups", DeprecationWarning, stacklevel=2)
    wanted = groups if groups is not None else num_groups
    options = Options(compression, sparse_as_dense, op, gradient_predivide_factor, wanted, process_set)
    if isinstance(gradtape, _DistributedTape):
        raise ValueError("lwcc: this tape is distributed already")
    kind = type(gradtape)
    wrapped: Any = type(f"Distributed{kind.__name__}", (_DistributedTape, kind), {})
    made = wrapped.__new__(wrapped)
    made.__dict__ = gradtape.__dict__
    made._lwcc = options._replace(scale_local=scale_local_gradients, algorithm=algorithm).checked()
    made._lwcc_local = set()
    return made


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape, device_dense: str = "", device_sparse: str = "",
    compression: type[Compressor] = Compression.none, sparse_as_dense: bool = False, op: int = Op.AVERAGE,
    gradient_predivide_factor: float = 1.0, num_groups: int = 0, groups: Groups = None,
    process_set: Optional[ProcessSet] = None, local_layers: Any = None, scale_local_gradients: bool = True, *,
    algorithm: Optional[Choice] = None,
) -> Any:  # fmt: skip
    """Return a `DistributedGradientTape` that leaves the gradients of some layers on their rank.

    Args:
        gradtape: as for `DistributedGradientTape`, and so the other arguments.
        device_dense: likewise.
        device_sparse: likewise.
        compression: likewise.
        sparse_as_dense: likewise.
        op: likewise.
        gradient_predivide_factor: likewise.
        num_groups: likewise.
        groups: likewise.
        process_set: likewise.
        local_layers: a Keras layer, or several.
        scale_local_gradients: likewise.
        algorithm: likewise.

    Raises:
        ValueError: a wrong argument.
    """
    made = DistributedGradientTape(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op=op, num_groups=num_groups,
        groups=groups, gradient_predivide_factor=gradient_predivide_factor, process_set=process_set,
        scale_local_gradients=scale_local_gradients, algorithm=algorithm,
    )  # fmt: skip
    layers = [] if local_layers is None else local_layers if isinstance(local_layers, (list, tuple)) else [local_layers]
    for layer in layers:
        if not hasattr(layer, "trainable_weights"):
            raise ValueError(f"lwcc: local_layers needs Keras layers, not {type(layer).__name__}")
        for variable in layer.trainable_weights:
            made.register_local_source(variable)
    return made
