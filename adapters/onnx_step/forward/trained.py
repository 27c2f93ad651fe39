"""Forwards that differ in training, or that make what their backward reads beside their outputs."""

from __future__ import annotations

from math import prod

from ..nodes.call_view import CallView
from ..nodes.writer import Tensor
from .forward_call import Forward, ForwardTable, Made


def is_inference(call: CallView) -> bool:
    """Whether a batch norm takes the statistics that it is given: they are computed by the file."""
    return not all(call.operand(at).is_leaf for at in (3, 4))


def _batch_norm(call: Forward) -> Made:
    """On the statistics of the batch, which are kept for the backward: mean and variance of each channel."""
    x, scale, bias = call.x(0), call.x(1), call.x(2)
    epsilon = call.epsilon()
    if is_inference(call):
        made = call.w.several(
            "BatchNormalization", (x, scale, bias, call.x(3), call.x(4)), call.specs[:1], names=call.names,
            epsilon=epsilon,
        )  # fmt: skip
        return Made((made[0], call.x(3), call.x(4))[: len(call.call.outputs)])
    channel = (tuple(call.shape_of(1)), call.operand(1).dtype)
    zeros, ones = (call.w.full(channel[0], fill, channel[1]) for fill in (0.0, 1.0))
    y, mean, variance = call.w.several(
        "BatchNormalization", (x, scale, bias, zeros, ones), [call.specs[0], channel, channel], names=call.names[:1],
        epsilon=epsilon, momentum=0.0, training_mode=1,
    )  # fmt: skip
    return Made((y, mean, variance)[: len(call.call.outputs)], (mean, variance))


def _dropout(call: Forward) -> Made:
    """A mask of the call's own seed, so that a recomputation drops the same elements."""
    ratio = call.w.scalar(float(call.number("ratio", 1, 0.5)), call.x().dtype)
    mask = (call.out, "bool")
    made = call.w.several(
        "Dropout", (call.x(), ratio, call.w.scalar(True, "bool")), [call.specs[0], mask], names=call.names,
        seed=call.seed,
    )  # fmt: skip
    return Made(made, ()) if len(call.call.outputs) > 1 else Made(made[:1], made[1:])


def _shrink(call: Forward) -> Made:
    """With the mask of what is kept, where the planner's rule says so."""
    made = call.made("Shrink", call.x(), **call.call.attributes)
    threshold = float(call.attr("lambd", 0.5))
    if float(call.attr("bias", 0.0)) in (0, threshold) or not call.operand(0).is_float:
        return made
    return Made(made.outputs, (call.x().apply("Abs") > threshold,))


def _random(call: Forward) -> Made:
    attributes = {key: value for key, value in call.call.attributes.items() if key != "seed"}
    return call.made(call.call.op_type, *call.args, seed=float(call.seed % 2**24), **attributes)


def _max_pool(call: Forward) -> Made:
    """With the indices of the maxima, counted over the whole tensor."""
    attributes = call.call.attributes
    if len(call.call.outputs) > 1:
        return call.made("MaxPool", call.x(), **attributes)
    made = call.node("MaxPool", call.x(), more=[(call.out, "int64")], **attributes)
    return Made(made[:1], made[1:])


def _layer_norm(call: Forward) -> Made:
    """With mean and inverse deviation of each row."""
    axis, shape = call.axis(-1), call.shape
    rows = ((*shape[:axis], *(1,) * (len(shape) - axis)), "float32")
    tail = shape[axis:]
    operands = [call.args[at] if call.has(at) else None for at in range(min(3, len(call.call.inputs)))]
    wide = [one if one is None or one.shape == tail else one.reshape(_aligned(one.shape, len(tail))).expand(tail)
            for one in operands[1:]]  # fmt: skip
    if not wide or wide[0] is None:
        wide = [call.w.full(tail, 1.0, call.x().dtype), *wide[1:]]
    made = call.w.several(
        "LayerNormalization", (call.x(), *wide), [call.specs[0], rows, rows], names=call.names, axis=axis,
        epsilon=call.epsilon(),
    )  # fmt: skip
    count = len(call.call.outputs)
    return Made(made[:count], made[count:])


def _aligned(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """A shape with as many dimensions: ones in front, or those that stand in front of it left out."""
    return (1,) * (rank - len(shape)) + shape[-rank:] if len(shape) < rank else shape[len(shape) - rank :]


def _group_norm(call: Forward) -> Made:
    """As an instance norm of the groups, and the scale and bias of the channels after it."""
    groups, x = int(call.attr("num_groups", 1)), call.x()
    batch, channels = call.shape[:2]
    flat = x.reshape((batch, groups, prod(call.shape[1:]) // groups))
    ones, zeros = (call.w.full((groups,), fill, x.dtype) for fill in (1.0, 0.0))
    made = call.w.op(
        "InstanceNormalization", flat, ones, zeros, shape=flat.shape, dtype=x.dtype, epsilon=call.epsilon()
    ).reshape(call.shape)
    for at in (1, 2):
        if call.has(at):
            weight = per_channel(call.x(at), channels, len(call.shape))
            made = made * weight if at == 1 else made + weight
    return Made((made,))


def per_channel(weight: Tensor, channels: int, rank: int) -> Tensor:
    """A weight of channels, or of groups of them, in the shape that meets an image."""
    count = prod(weight.shape)
    if count != channels:
        weight = weight.reshape((count, 1)).expand((count, channels // count))
    return weight.reshape((channels, *(1,) * (rank - 2)))


def _rms_norm(call: Forward) -> Made:
    axis, x = call.axis(-1), call.x()
    mean = (x * x).mean(range(axis, call.rank))
    made = x / (mean + call.epsilon()).apply("Sqrt")
    return Made((made * call.x(1) if call.has(1) else made,))


def _log_of_sum(call: Forward) -> Made:
    """With the sum."""
    total = call.x().reduce("ReduceSum", call.axes(), keep=bool(call.attr("keepdims", 1)))
    return Made((total.apply("Log"),), (total,))


def _mean_variance_norm(call: Forward) -> Made:
    """With the difference from the mean, and the deviation."""
    axes = tuple(axis % call.rank for axis in call.attr("axes", (0, 2, 3)))
    difference = call.x() - call.x().mean(axes)
    deviation = (difference * difference).mean(axes).apply("Sqrt")
    return Made((difference / (deviation + 1e-9),), (difference, deviation))


TRAINED: ForwardTable = {
    "BatchNormalization": _batch_norm,
    "Dropout": _dropout,
    "Shrink": _shrink,
    **dict.fromkeys(
        ("Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial"), _random
    ),
    "MaxPool": _max_pool,
    "LayerNormalization": _layer_norm,
    "GroupNormalization": _group_norm,
    "RMSNormalization": _rms_norm,
    "MeanVarianceNormalization": _mean_variance_norm,
    "ReduceLogSum": _log_of_sum,
}
