"""The gradient function of each op type. It reads only what the planner's rule says that the backward reads."""

from __future__ import annotations

from collections.abc import Callable

from ....planner.graph import ATEN_DOMAIN
from ....planner.onnx_import.values.values import Call
from .arithmetic import ARITHMETIC, RECORDED_ARITHMETIC
from .backward_call import Backward
from .convolutions import CONVOLUTIONS
from .functions import FUNCTIONS, RECORDED_FUNCTIONS
from .indexing import INDEXING
from .losses import LOSSES
from .moving import MOVING
from .norms import NORMS
from .pooling import POOLING
from .products import PRODUCTS
from .reductions import REDUCTIONS
from .resizing import RESIZING

GRADIENTS = {
    **ARITHMETIC, **FUNCTIONS, **PRODUCTS, **CONVOLUTIONS, **NORMS, **REDUCTIONS, **POOLING, **MOVING, **INDEXING,
    **RESIZING, **LOSSES,
}  # fmt: skip
"""Ops of the default domain."""

RECORDED = {**RECORDED_ARITHMETIC, **RECORDED_FUNCTIONS}
"""Calls of torch for which ONNX has no op, read of several nodes."""


def gradient_of(call: Call) -> Callable[[Backward], None] | None:
    """The gradient function of a call, None if there is none."""
    if call.charged:
        return None
    table = RECORDED if call.domain == ATEN_DOMAIN else GRADIENTS if not call.domain else {}
    return table.get(call.op_type)
