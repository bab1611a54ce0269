"""How the gradients of a step are reduced; no framework in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from lwcc.ops import Op, as_op

if TYPE_CHECKING:
    from lwcc.authoring import Choice
    from lwcc.process_sets import ProcessSet

Groups = Union[int, Sequence[Sequence[Any]], None]


class Options(NamedTuple):
    """How gradients are reduced; the fields are arguments of `DistributedOptimizer`."""

    compression: Any = None  # a Compressor of the framework; None: none
    sparse_as_dense: bool = False
    op: int = Op.AVERAGE
    predivide: float = 1.0
    groups: Groups = None
    process_set: Optional[ProcessSet] = None
    scale_local: bool = True
    algorithm: Optional[Choice] = None  # of the dense ones

    def checked(self) -> Options:
        """Return the options.

        Raises:
            ValueError: they don't fit together.
        """
        if as_op(self.op) not in (Op.AVERAGE, Op.SUM, Op.ADASUM):
            raise ValueError(f"lwcc: gradients take op=Average, Sum or Adasum, not {Op(self.op).name.title()}")
        if not math.isfinite(self.predivide) or self.predivide == 0:
            raise ValueError(f"lwcc: gradient_predivide_factor={self.predivide!r}: gradients are divided by it")
        if self.predivide != 1.0 and self.op != Op.AVERAGE:
            raise ValueError("lwcc: gradient_predivide_factor needs op=Average")
        if isinstance(self.groups, (str, float)):
            raise ValueError(f"lwcc: groups={self.groups!r}, must be a number of groups or lists of variables")
        if isinstance(self.groups, int) and self.groups < 0:
            raise ValueError(f"lwcc: groups={self.groups}, must be a number of groups or lists of variables")
        if self.groups and not isinstance(self.groups, int):
            members = [key(v) for group in self.groups for v in group]
            if len(set(members)) != len(members):
                raise ValueError("lwcc: groups has a variable twice")
        return self


def key(variable: Any) -> int:
    """Return what identifies a variable, be it Keras's or TensorFlow's own."""
    return id(getattr(variable, "_value", variable))
