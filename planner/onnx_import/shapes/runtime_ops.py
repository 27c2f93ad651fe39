"""Shapes of the ops that ONNX Runtime puts into a file when it optimises it, and where such files come from.

Reference: ONNX Runtime, ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ..document.protobuf import NodeProto
from ..values.values import Call

_DOMAIN = "com.microsoft"
_LIKE_FIRST = frozenset(
    "BiasAdd BiasDropout BiasGelu BiasSoftmax FastGelu Gelu GroupNorm MultiHeadAttention QuickGelu RotaryEmbedding"
    " SimplifiedLayerNormalization SkipGroupNorm SkipLayerNormalization SkipSimplifiedLayerNormalization".split()
)
_MADE_HERE = _LIKE_FIRST | {"Attention", "FusedConv", "FusedGemm", "FusedMatMul"}
_OF_TRAINING = frozenset({"YieldOp", "InPlaceAccumulator", "InPlaceAccumulatorV2", "ZeroGradient", "GradientOfInput"})


def runtime_shape(call: Call) -> tuple[int, ...] | None:
    """The shape of the first output of one of ONNX Runtime's own ops; None if it is not known here."""
    if call.domain != _DOMAIN or not call.inputs or call.inputs[0] is None:
        return None
    first = call.inputs[0].shape
    second = call.inputs[1].shape if len(call.inputs) > 1 and call.inputs[1] is not None else None
    if call.op_type in _LIKE_FIRST:
        return first
    if call.op_type == "FusedConv" and second is not None:
        return _convolved(first, second, call.attributes)
    if call.op_type == "Attention" and second is not None and len(second) == 2:
        sizes = call.attributes.get("qkv_hidden_sizes")
        return (*first[:-1], int(sizes[-1]) if isinstance(sizes, (list, tuple)) and sizes else second[1] // 3)
    if call.op_type == "FusedGemm" and second is not None and len(first) == len(second) == 2:
        return first[1 if call.attributes.get("transA") else 0], second[0 if call.attributes.get("transB") else 1]
    if call.op_type == "FusedMatMul" and second is not None and min(len(first), len(second)) >= 2:
        rows = first[-1 if call.attributes.get("transA") else -2]
        columns = second[-2 if call.attributes.get("transB") else -1]
        if call.attributes.get("transBatchA") or call.attributes.get("transBatchB"):
            return None
        try:
            return (*np.broadcast_shapes(first[:-2], second[:-2]), rows, columns)
        except ValueError:
            return None
    return None


def _convolved(data: tuple[int, ...], weight: tuple[int, ...], attributes: Mapping[str, object]) -> tuple[int, ...]:
    """The shape of a convolution's result."""
    spatial = len(data) - 2

    def given(name: str, default: int, count: int) -> list[int]:
        found = attributes.get(name)
        return [int(number) for number in found] if isinstance(found, (list, tuple)) else [default] * count

    pads, strides, dilations = (
        given("pads", 0, 2 * spatial),
        given("strides", 1, spatial),
        given("dilations", 1, spatial),
    )
    sizes = []
    for axis in range(spatial):
        size, kernel = data[2 + axis], dilations[axis] * (weight[2 + axis] - 1) + 1
        if str(attributes.get("auto_pad", "NOTSET")).startswith("SAME"):
            sizes.append(-(-size // strides[axis]))
        else:
            sizes.append((size + pads[axis] + pads[axis + spatial] - kernel) // strides[axis] + 1)
    return (data[0], weight[0], *sizes)


def is_charged_by_itself(op_type: str) -> bool:
    """Whether an op of ONNX Runtime can be charged without a shape from the user."""
    return op_type in _MADE_HERE


def origin(nodes: Iterable[NodeProto], domain: str) -> tuple[str, str] | None:
    """What a file with ops of ``domain`` is, and what to do; None if the domain is not ONNX Runtime's."""
    if not f"{domain}.".startswith(f"{_DOMAIN}."):
        return None
    kinds = {node.op_type for node in nodes}
    if any(kind.endswith("Grad") for kind in kinds) or kinds & _OF_TRAINING:
        return "a training graph that ONNX Runtime made", "plan the forward model that it was made from"
    if any("Q" in kind[:2] or "Quant" in kind for kind in kinds):
        return "a file that ONNX Runtime has quantised", "plan the floating-point file that it was made from"
    return "a file that ONNX Runtime has optimised", "plan the file that was optimised"
