"""Shapes that follow from known inputs, but that the onnx library does not infer."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, isfinite

from ..values.values import Call

MAX_LENGTH = 2**60


def missed_shape(call: Call) -> tuple[int, ...] | None:
    """The shape of the first output, None if it depends on data."""
    rule = _RULES.get(call.op_type)
    return None if rule is None else rule(call)


def _range(call: Call) -> tuple[int, ...] | None:
    """The library counts steps only for some element types, half precision not among them."""
    bounds = [call.known(position) for position in range(3)]
    if any(bound is None or bound.size != 1 for bound in bounds):
        return None
    start, limit, step = (float(bound.ravel()[0]) for bound in bounds if bound is not None)
    length = (limit - start) / step if step else float("nan")
    return (min(max(ceil(length), 0), MAX_LENGTH),) if isfinite(length) else None


def _max_unpool(call: Call) -> tuple[int, ...] | None:
    """The library does not look into ``output_shape``."""
    target = call.known(2)
    return None if target is None else tuple(int(size) for size in target.ravel())


def _compress(call: Call) -> tuple[int, ...] | None:
    """The library does not count the flags of a known condition."""
    data, condition, axis = call.inputs[0], call.known(1), call.attributes.get("axis")
    if data is None or condition is None:
        return None
    if not isinstance(axis, int):
        return (int(condition.ravel()[: data.numel].sum()),)
    if not -len(data.shape) <= axis < len(data.shape):
        return None
    axis %= len(data.shape)
    kept = int(condition.ravel()[: data.shape[axis]].sum())
    return (*data.shape[:axis], kept, *data.shape[axis + 1 :])


_RULES: dict[str, Callable[[Call], tuple[int, ...] | None]] = {
    "Range": _range,
    "MaxUnpool": _max_unpool,
    "Compress": _compress,
}
