"""Shapes that follow from known inputs, but that the onnx library does not infer, or infers otherwise than they run."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, isfinite

import numpy as np

from ..values.constant_folding import Array
from ..values.values import Call, Given, Partial

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


def run_shape(call: Call, known: Given, dims: Partial) -> Partial:
    """The inferred shape of an output as ONNX Runtime and torch run it."""
    data = call.inputs[0] if call.inputs else None
    if data is None or dims is None or len(dims) != len(data.shape):
        return dims
    if call.op_type in ("MaxPool", "AveragePool", "LpPool") and call.attributes.get("ceil_mode"):
        return _pooled(call, data.shape, dims)
    if call.op_type in ("Resize", "Upsample"):
        at = 2 if len(call.inputs) > 2 else 1
        scales = call.attributes.get("scales", known.get(at, call.known(at)))
        return dims if scales is None else _scaled(call, np.asarray(scales).ravel(), data.shape, dims)
    return dims


def _pooled(call: Call, shape: tuple[int, ...], dims: tuple[int | None, ...]) -> Partial:
    """The last window begins within the input or the pad in front of it."""
    count, made = len(shape) - 2, list(dims)
    steps, pads = (call.attributes.get(name) or (size,) * count for name, size in (("strides", 1), ("pads", 0)))
    for axis, (size, step, before) in enumerate(zip(shape[2:], steps, pads, strict=False), 2):  # type: ignore[call-overload]
        out = made[axis]
        if out is not None and out > 1 and (out - 1) * step >= size + before:
            made[axis] = out - 1
    return tuple(made)


def _scaled(call: Call, scales: Array, shape: tuple[int, ...], dims: tuple[int | None, ...]) -> Partial:
    """The library multiplies in float64, by which 10 times the float32 1.3 is 12."""
    axes, made = call.attributes.get("axes") or range(len(shape)), list(dims)
    for axis, scale in zip(axes, scales, strict=False):  # type: ignore[call-overload]
        length = np.float32(scale) * np.float32(shape[axis])
        made[axis] = int(length) if isfinite(length) else MAX_LENGTH
    return tuple(made)
