"""Pooling: an average is spread by a transposed convolution, a maximum by its index."""

from __future__ import annotations

from math import prod

import numpy as np

from ..nodes.window import Window
from ..nodes.writer import Array
from .backward_call import Backward, GradientTable
from .convolutions import spread

_PARTS, _LARGE_NBYTES = 8, 2**20


def _max_pool(call: Backward) -> None:
    """Each gradient is added at the index of its maximum; indices count over the whole tensor."""
    if int(call.attr("storage_order", 0)):
        raise call.refused("indices by columns have no gradient here")
    indices = call.y(1) if len(call.call.outputs) > 1 else call.hidden(0)
    count, g = prod(call.out), call.g.reshape((prod(call.out),))
    indices = indices.reshape((count,))
    made = call.w.full((prod(call.shape),), 0.0, call.dtype)
    step = -(-count // _PARTS) if g.nbytes > _LARGE_NBYTES else count
    for start in range(0, count, step):  # the runtime copies the indices of each part
        stop = min(start + step, count)
        made = call.w.op(
            "ScatterElements", made, indices.cut(0, start, stop), g.cut(0, start, stop), shape=made.shape,
            reduction="add", axis=0,
        )  # fmt: skip
    call.give(0, made.reshape(call.shape))


def _average_pool(call: Backward) -> None:
    """Each channel by itself, with the weight of a mean over what its windows count."""
    if call.call.parts:
        return _adaptive(call)
    kernel = tuple(call.attr("kernel_shape"))
    window = Window(call, kernel)
    counts = window_counts(window, bool(call.attr("count_include_pad", 0)))
    channels = call.shape[1]
    share = call.g * call.w.constant((1.0 / counts).astype(call.dtype))
    flat = share.reshape((call.shape[0] * channels, 1, *call.out[2:]))
    ones = call.w.full((1, 1, *kernel), 1.0, call.dtype)
    made = spread(flat, ones, window, 1, (call.shape[0] * channels, 1, *call.shape[2:]))
    return call.give(0, made.reshape(call.shape))


def window_counts(window: Window, counted: bool) -> Array:
    """The number of elements that each window counts, pads included if ``counted``."""
    total = np.ones((1,) * 0)
    for axis, out in enumerate(window.out):
        low = 0 if not counted else -window.before[axis]
        high = window.size[axis] if not counted else window.size[axis] + window.after[axis]
        starts = np.arange(out)[:, None] * window.strides[axis] - window.before[axis]
        places = starts + np.arange(window.kernel[axis]) * window.dilations[axis]
        found = ((places >= low) & (places < high)).sum(1).astype(np.float64)
        total = np.multiply.outer(total, np.maximum(found, 1))
    return total


def _adaptive(call: Backward) -> None:
    """An adaptive average: a product with a matrix along each of the last two dimensions."""
    g = call.g
    for axis in (-1, -2):
        old, new = call.shape[axis], call.out[axis]
        matrix = np.zeros((new, old))
        for at in range(new):
            start, stop = at * old // new, -(-(at + 1) * old // new)
            matrix[at, start:stop] = 1 / (stop - start)
        weight = call.w.constant(matrix.astype(call.dtype))
        g = g.matmul(weight) if axis == -1 else g.turned().matmul(weight).turned()
    call.give(0, g)


def _global_max(call: Backward) -> None:
    """The first of equal maxima gets the gradient, as torch's pooling does."""
    batch, channels, *size = call.shape
    flat = call.x().reshape((batch, channels, prod(size)))
    index = call.w.op("ArgMax", flat, shape=(batch, channels, 1), dtype="int64", axis=2)
    zeros = call.w.full(flat.shape, 0.0, call.dtype)
    made = call.w.op("ScatterElements", zeros, index, call.g.reshape((batch, channels, 1)), shape=flat.shape, axis=2)
    call.give(0, made.reshape(call.shape))


def _global_norm(call: Backward) -> None:
    power = float(call.attr("p", 2))
    y = call.y()
    share = call.w.op("Equal", y, 0.0).where(0.0, call.g / (y if power == 2 else call.w.op("Pow", y, power - 1)))
    x = call.x()
    if power != 2:
        x = x.apply("Sign") * call.w.op("Pow", x.apply("Abs"), power - 1)
    call.give(0, x * share)


POOLING: GradientTable = {
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalMaxPool": _global_max,
    "GlobalLpPool": _global_norm,
}
