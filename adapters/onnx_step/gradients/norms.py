"""Norms: the gradient of x is that of the normalised x without its mean and its part along it."""

from __future__ import annotations

from math import prod

from ..forward.trained import is_inference, per_channel
from ..nodes.writer import Tensor
from .backward_call import Backward, GradientTable


def _turned_back(g: Tensor, normal: Tensor, inverse: Tensor, axes: tuple[int, ...], *, centred: bool = True) -> Tensor:
    """(g - mean(g) - normal mean(g normal)) * inverse over ``axes``."""
    along = (g * normal).mean(axes)
    mean = g.mean(axes) if centred else None  # before the difference, which then takes the place of g
    rest = g - normal * along
    return (rest if mean is None else rest - mean) * inverse


def _batch_norm(call: Backward) -> None:
    x, scale = call.x(0), call.x(1)
    inference = is_inference(call)
    mean, variance = (call.x(3), call.x(4)) if inference else (call.hidden(0), call.hidden(1))
    epsilon, channels = call.epsilon(), call.shape[1] if call.rank > 1 else 1
    axes, g = (0, *range(2, call.rank)), call.g
    like = (1, channels, *(1,) * (call.rank - 2))
    inverse = 1.0 / (variance + epsilon).apply("Sqrt")
    ones, zeros = (call.w.full((channels,), fill, x.dtype) for fill in (1.0, 0.0))
    normal = call.w.op("BatchNormalization", x, ones, zeros, mean, variance, shape=x.shape, epsilon=epsilon)
    bias_gradient = g.sum(axes, keep=False)
    scale_gradient = _along(g, normal)
    if call.needs(2):
        call.give(2, bias_gradient)
    if call.needs(1):
        call.give(1, scale_gradient)
    if call.needs(0):
        factor = (scale * inverse).reshape(like)
        if inference:
            return call.give(0, g * factor)
        count = prod(x.shape) // max(channels, 1)
        slope = (scale_gradient * (-1.0 / count)).reshape(like) * factor
        offset = (bias_gradient * (-1.0 / count)).reshape(like) * factor
        call.give(0, normal * slope + g * factor + offset)
    return None


def _along(g: Tensor, normal: Tensor) -> Tensor:
    """The sum of g * normal over all but the channels, as products of rows and columns: no tensor of their size."""
    batch, channels = g.shape[:2]
    count = prod(g.shape[2:])
    rows = g.reshape((batch, channels, 1, count))
    return rows.matmul(normal.reshape((batch, channels, count, 1))).sum((0, 2, 3), keep=False)


def _layer_norm(call: Backward) -> None:
    if call.arriving(1) is not None or call.arriving(2) is not None:
        raise call.refused("a gradient of its mean or deviation is not passed on")
    axis = call.axis(-1)
    axes = tuple(range(axis, call.rank))
    shown = len(call.call.outputs) == 3
    mean, inverse = (call.y(1), call.y(2)) if shown else (call.hidden(0), call.hidden(1))
    normal = (call.x(0) - mean.cast(call.dtype)) * inverse.cast(call.dtype)
    g = call.g
    if call.needs(2):
        call.give(2, _to_tail(g, call.shape_of(2), axis))
    if call.needs(1):
        call.give(1, _to_tail(g * normal, call.shape_of(1), axis))
    if call.needs(0):
        g = g * _at_tail(call.x(1), call.rank) if call.has(1) else g
        call.give(0, _turned_back(g, normal, inverse.cast(call.dtype), axes))


def _at_tail(weight: Tensor, rank: int) -> Tensor:
    return weight.reshape((1,) * (rank - weight.rank) + weight.shape) if weight.rank < rank else weight


def _to_tail(g: Tensor, shape: tuple[int, ...], axis: int) -> Tensor:
    """Summed to the shape of a weight, which is repeated over the dimensions before ``axis``."""
    return g.sum_to(shape)


def _rms_norm(call: Backward) -> None:
    axis = call.axis(-1)
    axes = tuple(range(axis, call.rank))
    x, g = call.x(0), call.g
    inverse = 1.0 / ((x * x).mean(axes) + call.epsilon()).apply("Sqrt")
    normal = x * inverse
    if call.needs(1):
        call.give(1, _to_tail(g * normal, call.shape_of(1), axis))
    if call.needs(0):
        call.give(0, _turned_back(g * _at_tail(call.x(1), call.rank), normal, inverse, axes, centred=False))


def _statistics(x: Tensor, axes: tuple[int, ...], epsilon: float) -> tuple[Tensor, Tensor]:
    """x without its mean, over its deviation; and one over that."""
    centred = x - x.mean(axes)
    inverse = 1.0 / ((centred * centred).mean(axes) + epsilon).apply("Sqrt")
    return centred * inverse, inverse


def _group_norm(call: Backward) -> None:
    groups = int(call.attr("num_groups", 1)) if call.call.op_type == "GroupNormalization" else call.shape[1]
    batch, channels = call.shape[:2]
    flat = (batch, groups, prod(call.shape[1:]) // groups)
    normal, inverse = _statistics(call.x(0).reshape(flat), (2,), call.epsilon())
    g = call.g
    for position in (1, 2):
        if call.needs(position):
            total = (
                _along(g, normal.reshape(call.shape)) if position == 1 else g.sum((0, *range(2, g.rank)), keep=False)
            )
            call.give(position, _to_weight(total, call.shape_of(position)))
    if call.needs(0):
        if call.has(1):
            g = g * per_channel(call.x(1), channels, call.rank)
        call.give(0, _turned_back(g.reshape(flat), normal, inverse, (2,)).reshape(call.shape))


def _to_weight(total: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Sums of channels in the shape of a weight of channels, or of groups of them."""
    count = prod(shape)
    if count != total.shape[0]:
        total = total.reshape((count, total.shape[0] // count)).sum((1,))
    return total.reshape(shape)


def _lp_norm(call: Backward) -> None:
    axis, power = (call.axis(-1),), int(call.attr("p", 2))
    x, g = call.x(0), call.g
    if power == 2:
        inverse = 1.0 / _at_least(x.reduce("ReduceL2", axis))
        normal = x * inverse
        call.give(0, (g - normal * (g * normal).sum(axis)) * inverse)
        return
    inverse = 1.0 / _at_least(x.reduce("ReduceL1", axis))
    along = (g * x).sum(axis) * inverse
    call.give(0, (g - x.apply("Sign") * along) * inverse)


def _at_least(norm: Tensor) -> Tensor:
    return norm.writer.op("Max", norm, 1e-12)


def _mean_variance_norm(call: Backward) -> None:
    axes = tuple(axis % call.rank for axis in call.attr("axes", (0, 2, 3)))
    difference, deviation, g = call.hidden(0), call.hidden(1), call.g
    divisor = deviation + 1e-9
    along = (g * difference).mean(axes) / (deviation * divisor)
    inner = (g - difference * along) / divisor
    call.give(0, inner - inner.mean(axes))


def _local_response_norm(call: Backward) -> None:
    """x / base^beta: each base has the squares of the channels around it."""
    size, alpha = int(call.attr("size")), float(call.attr("alpha", 1e-4))
    beta, bias = float(call.attr("beta", 0.75)), float(call.attr("bias", 1.0))
    x, g = call.x(0), call.g
    before, after = (size - 1) // 2, size // 2
    base = _windows(x * x, before, after) * (alpha / size) + bias
    power = x.writer.op("Pow", base, -beta, shape=x.shape)
    inner = g * x * power / base
    call.give(0, g * power - _windows(inner, after, before) * x * (2 * alpha * beta / size))


def _windows(x: Tensor, before: int, after: int) -> Tensor:
    """The sum over the channels from ``before`` in front of each one to ``after`` behind it."""
    none = [0] * x.rank
    wide = x.pad([0, before, *none[2:]], [0, after, *none[2:]])
    total = wide.cut(1, 0, x.shape[1])
    for at in range(1, before + after + 1):
        total = total + wide.cut(1, at, at + x.shape[1])
    return total


NORMS: GradientTable = {
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _group_norm,
    "LpNormalization": _lp_norm,
    "LRN": _local_response_norm,
    "MeanVarianceNormalization": _mean_variance_norm,
}
