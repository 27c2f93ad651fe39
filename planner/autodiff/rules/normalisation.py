"""Norms: the input, the scale and small statistics."""

from __future__ import annotations

from math import prod

from .op_call import RuleCall, Saved, item_nbytes, statistic_nbytes, table


def _statistics(call: RuleCall, count: int, rows: int) -> tuple[int, ...]:
    return (rows * statistic_nbytes(call.first),) * count


def _batch_norm(call: RuleCall) -> Saved:
    shape = call.first.shape
    return Saved((0, 1), (), _statistics(call, 2, shape[1] if len(shape) > 1 else 1))


def _rows(call: RuleCall) -> int:
    shape = call.first.shape
    return prod(shape[: call.integer("axis", -1) % max(len(shape), 1)])


def _layer_norm(call: RuleCall) -> Saved:
    """Input, scale, bias, and the mean and inverse deviation of each row, which may be outputs."""
    shown = tuple(range(1, len(call.outputs)))
    return Saved(call.present((0, 1, 2)), shown, _statistics(call, 2 - len(shown), _rows(call)))


def composes_rms_norm(call: RuleCall) -> bool:
    """torch fuses an RMS norm only where input and scale have one element type; else it computes in the wider one."""
    return call.has(1) and call.required(1).dtype != call.first.dtype


def _rms_norm(call: RuleCall) -> Saved:
    if composes_rms_norm(call):
        wide = call.first.numel * item_nbytes(call.required(1))
        normalised = (wide,) if call.needed(1) else ()
        if not call.needed(0):
            return Saved((), (), normalised)
        return Saved((1,), (), (wide, *_statistics(call, 1, _rows(call)), *normalised))
    return Saved(call.present((0, 1)), (), _statistics(call, 1, _rows(call)))


def _group_norm(call: RuleCall) -> Saved:
    """F.group_norm; in opset 18 scale and bias are per group: a product and a sum after it."""
    groups, channels = call.integer("num_groups", 1), call.first.shape[1]
    statistics = _statistics(call, 2, call.first.shape[0] * groups)
    if not call.has(1) or channels in (call.required(1).numel, groups):
        return Saved(call.present((0, 1)), (), statistics)
    normalised = (call.first.nbytes,) if call.needed(1) else ()
    return Saved((0, 1), (), (*statistics, *normalised)) if call.needed(0) else Saved((), (), normalised)


def _instance_norm(call: RuleCall) -> Saved:
    """The input, mean and inverse deviation, and the weight repeated over the batch."""
    return Saved((0,), (), _statistics(call, 3, prod(call.first.shape[:2])))


def _local_response_norm(call: RuleCall) -> Saved:
    """x / (k + alpha * mean_window(x^2))^beta as torch composes it: padded squares, the base and the power."""
    tensor = call.first
    channels = tensor.shape[1]
    padded = tensor.nbytes // max(channels, 1) * (channels + call.integer("size", 1) - 1)
    return Saved((0,), (), (padded, tensor.nbytes, tensor.nbytes))


def _mean_variance_norm(call: RuleCall) -> Saved:
    """d / (sqrt(mean(d^2)) + epsilon) with d = x - mean(x): the difference, the deviation and the divisor."""
    tensor, axes = call.first, call.op.attribute("axes", (0, 2, 3))
    assert isinstance(axes, tuple)
    reduced = {axis % max(len(tensor.shape), 1) for axis in axes}
    rows = prod(size for axis, size in enumerate(tensor.shape) if axis not in reduced)
    return Saved((), (), (tensor.nbytes, *_statistics(call, 2, rows)))


def _lp_norm(call: RuleCall) -> Saved:
    """F.normalize: the input, the norm of each row and the divisor."""
    tensor = call.first
    rows = tensor.numel // max((tensor.shape or (1,))[call.integer("axis", -1)], 1)
    return Saved((0,), (), _statistics(call, 2, rows))


RULES = table(
    {
        _batch_norm: "BatchNormalization",
        _layer_norm: "LayerNormalization",
        _rms_norm: "RMSNormalization",
        _group_norm: "GroupNormalization",
        _instance_norm: "InstanceNormalization",
        _local_response_norm: "LRN",
        _mean_variance_norm: "MeanVarianceNormalization",
        _lp_norm: "LpNormalization",
    }
)
