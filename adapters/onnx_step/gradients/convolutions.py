"""Convolutions: each gradient is a convolution, too, with the roles of its operands exchanged."""

from __future__ import annotations

from math import prod

from ..nodes.window import Window
from ..nodes.writer import Tensor
from .backward_call import Backward, GradientTable

_PARTS = 4
"""In how many parts the images of a large batch are taken, so that few of them are laid out anew at once."""


def _convolution(call: Backward) -> None:
    window, groups = Window(call, call.shape_of(1)[2:]), int(call.attr("group", 1))
    g = call.g
    if call.needs(2):
        call.give(2, _over_images(g))
    if call.needs(1):
        call.give(1, _weight(call.x(0), g, window, groups))
    if call.needs(0):
        call.give(0, spread(g, call.x(1), window, groups, call.shape))


def _over_images(g: Tensor) -> Tensor:
    return g.sum((0, *range(2, g.rank)), keep=False)


def spread(g: Tensor, weight: Tensor, window: Window, groups: int, shape: tuple[int, ...]) -> Tensor:
    """The transposed convolution that gives a tensor of ``shape``, the input of a convolution.

    With steps of one it is written as a convolution, which needs less scratch memory.
    """
    if set(window.strides) == {1}:
        return _turned(g, weight, window, groups, shape)
    missing = [
        size + b + a - ((out - 1) * s + window.span(axis))
        for axis, (size, b, a, out, s) in enumerate(
            zip(shape[2:], window.before, window.after, g.shape[2:], window.strides, strict=True)
        )
    ]  # elements at the end that no window reaches
    after, extra = list(window.after), [0] * len(missing)
    for axis, count in enumerate(missing):
        taken = min(count, after[axis])  # a pad that no window reaches is none
        after[axis] -= taken
        extra[axis] = count - taken
    made = tuple(size - more for size, more in zip(shape[2:], extra, strict=True))
    result = g.writer.op(
        "ConvTranspose", g, weight, shape=(*shape[:2], *made), strides=window.strides, dilations=window.dilations,
        pads=(*window.before, *after), group=groups,
    )  # fmt: skip
    return result.pad([0] * len(shape), [0, 0, *extra])


def _turned(g: Tensor, weight: Tensor, window: Window, groups: int, shape: tuple[int, ...]) -> Tensor:
    """The convolution with the weight whose channels are exchanged and whose kernel is turned round."""
    count = len(window.kernel)
    if set(window.kernel) != {1}:
        ints = g.writer.ints
        axes = range(2, 2 + count)
        weight = g.writer.op(
            "Slice", weight, ints([-1] * count), ints([-(2**31)] * count), ints(axes), ints([-1] * count),
            shape=weight.shape, dtype=weight.dtype,
        )  # fmt: skip
    made, inner, *kernel = weight.shape
    weight = weight.reshape((groups, made // groups, inner, *kernel)).transpose((0, 2, 1, *range(3, 3 + count)))
    weight = weight.reshape((groups * inner, made // groups, *kernel))
    before = [window.span(axis) - 1 - window.before[axis] for axis in range(count)]
    after = [shape[2 + axis] - (g.shape[2 + axis] + before[axis] - window.span(axis) + 1) for axis in range(count)]
    for axis in range(count):
        start, stop = max(0, -before[axis]), g.shape[2 + axis] - max(0, -after[axis])
        g = g.cut(2 + axis, start, stop)
    return g.writer.op(
        "Conv", g, weight, shape=shape, dilations=window.dilations, group=groups,
        pads=(*(max(0, number) for number in before), *(max(0, number) for number in after)),
    )  # fmt: skip


def _weight(x: Tensor, g: Tensor, window: Window, groups: int) -> Tensor:
    """The gradient of a convolution's weight: the input convolved with the output's gradient."""
    batch, channels, *size = x.shape
    made = g.shape[1]
    inner = channels // groups
    if groups == 1 and {*window.kernel, *window.strides} == {1} and not any(window.pads):
        return _matrix(x, g).reshape((made, channels, *window.kernel))
    after = [
        (out - 1) * s + 1 + (k - 1) * d - length - b
        for out, s, k, d, length, b in zip(
            g.shape[2:], window.strides, window.kernel, window.dilations, size, window.before, strict=True
        )
    ]
    parts = min(batch, _PARTS) if x.nbytes + g.nbytes > 4 * made * inner * prod(window.kernel) * 4 else 1
    step, found = -(-batch // parts), None
    for start in range(0, batch, step):
        stop = min(start + step, batch)
        part = _correlation(x.cut(0, start, stop), g.cut(0, start, stop), window, groups, after)
        found = part if found is None else found + part
    assert found is not None
    return found.transpose((1, 0, *range(2, g.rank)))


def _correlation(x: Tensor, g: Tensor, window: Window, groups: int, after: list[int]) -> Tensor:
    """The weight's gradient with its first two dimensions exchanged: images and channels change places."""
    batch, channels, *size = x.shape
    made, count, inner = g.shape[1], len(window.kernel), channels // groups
    order = tuple(range(3, 3 + count))
    source = x.reshape((batch, groups, inner, *size)).transpose((2, 1, 0, *order))
    source = source.reshape((inner, groups * batch, *size))
    cut = [min(0, number) for number in after]
    if any(cut):
        for axis, number in enumerate(cut):
            source = source.cut(2 + axis, 0, size[axis] + number)
    kernel = g.transpose((1, 0, *range(2, g.rank)))
    return x.writer.op(
        "Conv", source, kernel, shape=(inner, made, *window.kernel), strides=window.dilations,
        dilations=window.strides, pads=(*window.before, *(max(0, number) for number in after)), group=groups,
    )  # fmt: skip


def _matrix(x: Tensor, g: Tensor) -> Tensor:
    """The weight of a kernel of one element: a product for each image, added up by the product itself."""
    batch, channels, *size = x.shape
    count, found = prod(size), None
    for at in range(batch):
        rows = g.cut(0, at, at + 1).reshape((g.shape[1], count))
        columns = x.cut(0, at, at + 1).reshape((channels, count))
        found = x.writer.op("Gemm", rows, columns, found, shape=(g.shape[1], channels), transB=1)
    assert found is not None
    return found


def _turned_convolution(call: Backward) -> None:
    """The input's gradient is a convolution; the weight's is that of one whose input is the output's gradient."""
    window, groups = Window(call, call.shape_of(1)[2:]), int(call.attr("group", 1))
    extra = tuple(call.attr("output_padding", (0,) * len(window.kernel)))
    for axis, (size, s, out) in enumerate(zip(window.size, window.strides, window.out, strict=True)):
        whole = (size - 1) * s + window.span(axis) + extra[axis]
        if call.attr("output_shape") is not None or window.kind.startswith("SAME"):
            window.split(axis, whole - out)
        if min(window.before[axis], window.after[axis]) < 0:
            raise call.refused("an output that is larger than what it adds up has no gradient here")
        window.after[axis] = whole - extra[axis] - out - window.before[axis]
    g = call.g
    negative = [min(0, number) for number in window.after]
    if call.needs(2):
        call.give(2, _over_images(g))
    for axis, number in enumerate(negative):
        g = g.cut(2 + axis, 0, g.shape[2 + axis] + number)
        window.after[axis] = max(0, window.after[axis])
    if call.needs(1):
        call.give(1, _weight(g, call.x(0), window, groups))
    if call.needs(0):
        call.give(0, call.w.op(
            "Conv", g, call.x(1), shape=call.shape, strides=window.strides, dilations=window.dilations,
            pads=window.pads, group=groups,
        ))  # fmt: skip


CONVOLUTIONS: GradientTable = {"Conv": _convolution, "ConvTranspose": _turned_convolution}
