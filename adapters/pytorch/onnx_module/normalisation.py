"""Norms. Batch norm trains on the batch in training mode and moves its statistics, as torch's does."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ....planner.onnx_import.meaning.formula_numbers import epsilon_of
from .node import InTraining, Node, Run, Table


def _batch_norm(node: Node) -> Run | InTraining:
    momentum, epsilon = 1 - float(node.attr("momentum", 0.9)), float(node.attr("epsilon", 1e-5))
    count = len(node.call.outputs)
    moves = all(node.operand(at).is_leaf for at in (3, 4))

    def run(training: bool, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Any:
        if not moves:  # they are computed, and torch passes them no gradient
            mean, variance = mean.detach(), variance.detach()
        made = F.batch_norm(x, mean, variance, scale, bias, training and moves, momentum, epsilon)
        return (made, mean, variance, mean, variance)[:count]

    return InTraining(run)


def _formula_epsilon(node: Node, default: float) -> float:
    """The epsilon of an op, or the number that its formula adds to the variance."""
    found = epsilon_of(node.call, default)
    if found is None:
        raise node.refused("the epsilon of its formula is not found")
    return found


def _as(weight: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    return None if weight is None else weight.reshape(shape)


def _layer_norm(node: Node) -> Run:
    axis, epsilon = node.axis(-1), _formula_epsilon(node, 1e-5)
    shape = node.shape()[axis:]
    full = all(not node.has(at) or node.operand(at).numel == prod(shape) for at in (1, 2))
    if full and len(node.call.outputs) == 1:
        return lambda x, scale=None, bias=None: F.layer_norm(x, shape, _as(scale, shape), _as(bias, shape), epsilon)
    axes, count = tuple(range(axis, node.rank)), len(node.call.outputs)
    if full:
        return lambda x, scale=None, bias=None: torch.native_layer_norm(
            x, shape, _as(scale, shape), _as(bias, shape), epsilon
        )[:count]

    def run(x: Tensor, scale: Tensor | None = None, bias: Tensor | None = None) -> Any:
        mean = x.mean(axes, keepdim=True)
        inverse = torch.rsqrt(x.var(axes, correction=0, keepdim=True) + epsilon)
        made = (x - mean) * inverse
        made = made if scale is None else made * scale
        return (made if bias is None else made + bias, mean, inverse)[:count]

    return run


def _rms_norm(node: Node) -> Run:
    axis, epsilon = node.axis(-1), float(node.attr("epsilon", 1e-5))
    shape = node.shape()[axis:]
    if node.shape(1) == shape:
        return lambda x, scale: F.rms_norm(x, shape, scale, epsilon)
    return lambda x, scale: F.rms_norm(x, shape, None, epsilon) * scale


def _instance_norm(node: Node) -> Run:
    epsilon = float(node.attr("epsilon", 1e-5))
    return lambda x, scale, bias: F.instance_norm(x, None, None, scale, bias, True, 0.0, epsilon)


def _group_norm(node: Node) -> Run:
    groups, epsilon = int(node.attr("num_groups")), _formula_epsilon(node, 1e-5)
    channels, flat = node.shape()[1], (-1,)
    if not node.has(1) or node.operand(1).numel == channels:
        return lambda x, scale=None, bias=None: F.group_norm(x, groups, _as(scale, flat), _as(bias, flat), epsilon)
    shape = (1, channels, *(1,) * (node.rank - 2))

    def per_group(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        wide = [weight.repeat_interleave(channels // groups).reshape(shape) for weight in (scale, bias)]
        return F.group_norm(x, groups, None, None, epsilon) * wide[0] + wide[1]

    return per_group


def _local_response_norm(node: Node) -> Run:
    size, alpha = int(node.attr("size")), float(node.attr("alpha", 1e-4))
    beta, bias = float(node.attr("beta", 0.75)), float(node.attr("bias", 1.0))
    if size % 2:
        return lambda x: F.local_response_norm(x, size, alpha, beta, bias)
    before, after = (size - 1) // 2, size // 2
    tail = (1,) * (node.rank - 2)

    def run(x: Tensor) -> Tensor:
        squares = F.pad(x * x, [0, 0] * len(tail) + [before, after])
        total = sum(squares[:, at : at + x.shape[1]] for at in range(size))
        return x / (total * (alpha / size) + bias) ** beta

    return run


def _mean_variance_norm(node: Node) -> Run:
    axes = tuple(node.attr("axes", (0, 2, 3)))

    def run(x: Tensor) -> Tensor:
        difference = x - x.mean(axes, keepdim=True)
        return difference / (difference.square().mean(axes, keepdim=True).sqrt() + 1e-9)

    return run


def _lp_norm(node: Node) -> Run:
    axis, power = node.axis(-1), float(node.attr("p", 2))
    return lambda x: F.normalize(x, power, axis)


OPS: Table = {
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm,
    "LRN": _local_response_norm,
    "MeanVarianceNormalization": _mean_variance_norm,
    "LpNormalization": _lp_norm,
}
FUSED: Table = {"LayerNormalization": _layer_norm, "GroupNormalization": _group_norm}
