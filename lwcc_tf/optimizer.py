"""DistributedOptimizer with its arguments in the order of `horovod.tensorflow`; else that of `lwcc_tf.keras`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from lwcc.ops import Op
from lwcc_tf.keras import optimizer as keras_optimizer
from lwcc_tf.options import Groups

if TYPE_CHECKING:
    from lwcc.authoring import Choice
    from lwcc.process_sets import ProcessSet


def DistributedOptimizer(
    optimizer: Any, name: Optional[str] = None, use_locking: bool = False, device_dense: str = "",
    device_sparse: str = "", compression: Any = None, sparse_as_dense: bool = False, backward_passes_per_step: int = 1,
    op: int = Op.AVERAGE, gradient_predivide_factor: float = 1.0, average_aggregated_gradients: bool = False,
    num_groups: int = 0, groups: Groups = None, process_set: Optional[ProcessSet] = None,
    scale_local_gradients: bool = True, *, algorithm: Optional[Choice] = None,
) -> Any:  # fmt: skip
    """Return what `lwcc_tf.keras.DistributedOptimizer` does; `use_locking` is accepted for compatibility.

    Raises:
        TypeError: no optimizer of Keras.
        ValueError: distributed already, or a wrong argument.
    """
    return keras_optimizer.DistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op,
        backward_passes_per_step, average_aggregated_gradients, num_groups, groups, process_set,
        scale_local_gradients, algorithm=algorithm,
    )  # fmt: skip
