"""Activations, softmax and dropout."""

from __future__ import annotations

from math import isclose, prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .node import InTraining, Node, Run, Table, plain, torch_dtype


def _gelu(node: Node) -> Run:
    """F.gelu; of a formula, the approximation that its ops compute."""
    tanh = any(part.op_type == "Tanh" for part in node.call.parts)
    kind = "tanh" if tanh else str(node.attr("approximate", "none"))
    return lambda x: F.gelu(x, approximate=kind)


def _leaky(node: Node) -> Run:
    slope = node.attr("alpha", 0.01)
    return lambda x: F.leaky_relu(x, slope)


def _elu(node: Node) -> Run:
    alpha = node.attr("alpha", 1.0)
    return lambda x: F.elu(x, alpha)


def _celu(node: Node) -> Run:
    alpha = node.attr("alpha", 1.0)
    return lambda x: F.celu(x, alpha)


def _selu(node: Node) -> Run:
    alpha, gamma = node.attr("alpha", 1.67326319217681884765625), node.attr("gamma", 1.05070102214813232421875)
    if isclose(alpha, 1.6732632, rel_tol=1e-5) and isclose(gamma, 1.0507010, rel_tol=1e-5):
        return F.selu
    return lambda x: gamma * F.elu(x, alpha)


def _thresholded(node: Node) -> Run:
    alpha = node.attr("alpha", 1.0)
    return lambda x: F.threshold(x, alpha, 0.0)


def _prelu(node: Node) -> Run:
    slope, rank = node.shape(1), node.rank
    aligned = (1,) * (rank - len(slope)) + slope
    if prod(slope) == 1 or (rank > 1 and aligned[1] == prod(slope) == node.shape()[1]):
        return lambda x, slope: F.prelu(x, slope.reshape(-1))
    return lambda x, slope: torch.where(x < 0, x * slope, x)


def _hard_sigmoid(node: Node) -> Run:
    if node.call.parts:  # the reader has checked that the formula is torch's
        return F.hardsigmoid
    slope, offset = node.attr("alpha", 0.2), node.attr("beta", 0.5)
    if isclose(slope, 1 / 6, rel_tol=1e-4) and isclose(offset, 0.5):
        return F.hardsigmoid
    return lambda x: torch.clamp(x * slope + offset, 0, 1)


def _swish(node: Node) -> Run:
    alpha = node.attr("alpha", 1.0)
    return F.silu if alpha == 1 else lambda x: x * torch.sigmoid(alpha * x)


def _swiglu(node: Node) -> Run:
    alpha = node.attr("alpha", 1.0)
    gate: Run = F.silu if alpha == 1 else lambda x: x * torch.sigmoid(alpha * x)
    return lambda a, b: gate(a) * b


def _shrink(node: Node) -> Run:
    bias, lambd = node.attr("bias", 0.0), node.attr("lambd", 0.5)
    if bias == 0:
        return lambda x: F.hardshrink(x, lambd)
    if bias == lambd:
        return lambda x: F.softshrink(x, lambd)

    def run(x: Tensor) -> Tensor:
        above = torch.where(x > lambd, x - bias, torch.zeros_like(x))
        return torch.where(x < -lambd, x + bias, above)

    return run


def _softmax(function: Any) -> Any:
    def build(node: Node) -> Run:
        rank, dtype = node.rank, torch_dtype(node.call.outputs[0].dtype)
        wide = None if node.call.outputs[0].dtype == node.operand(0).dtype else dtype
        axis = node.axis(-1 if node.opset >= 13 else 1)
        if node.opset >= 13 or axis == rank - 1:
            return lambda x: function(x, axis, dtype=wide)
        return lambda x: function(x.flatten(axis), axis, dtype=wide).view(x.shape)

    return build


def _hardmax(node: Node) -> Run:
    axis = node.axis(-1 if node.opset >= 13 else 1)
    if node.opset < 13 and axis != node.rank - 1:
        raise node.refused("its axis before opset 13 is not the last")
    return lambda x: F.one_hot(x.argmax(axis), x.shape[axis]).movedim(-1, axis).to(x.dtype)


def _dropout(node: Node) -> Run | InTraining:
    rate = float(node.number("ratio", 1, 0.5))
    if node.has(2):
        node.known(2)
    if len(node.call.outputs) == 1:
        return InTraining(lambda training, x, *_: F.dropout(x, rate, training))

    def with_mask(training: bool, x: Tensor, *_: Any) -> Any:
        return torch.native_dropout(x, rate, training)

    return InTraining(with_mask)


OPS: Table = {
    "Relu": plain(torch.relu),
    "Sigmoid": plain(torch.sigmoid),
    "Tanh": plain(torch.tanh),
    "LeakyRelu": _leaky,
    "Elu": _elu,
    "Celu": _celu,
    "Selu": _selu,
    "ThresholdedRelu": _thresholded,
    "PRelu": _prelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": plain(F.hardswish),
    "Softplus": plain(F.softplus),
    "Softsign": plain(F.softsign),
    "Mish": plain(F.mish),
    "Swish": _swish,
    "SwiGLU": _swiglu,
    "Gelu": _gelu,
    "Shrink": _shrink,
    "Softmax": _softmax(F.softmax),
    "LogSoftmax": _softmax(F.log_softmax),
    "Hardmax": _hardmax,
    "Dropout": _dropout,
}


def _gated(node: Node) -> Run:
    split = next(part for part in node.call.parts if part.op_type == "Split")
    axis: Any = split.attributes.get("axis", 0)
    return lambda x: F.glu(x, axis)


FUSED: Table = {
    "Gelu": _gelu, "Swish": _swish, "Mish": OPS["Mish"], "HardSwish": OPS["HardSwish"], "HardSigmoid": _hard_sigmoid,
    "log_sigmoid": plain(F.logsigmoid), "glu": _gated,
}  # fmt: skip
