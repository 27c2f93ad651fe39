"""Convolutions and pooling over windows."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .node import Node, Run, Table

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TURNED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


class _Window:
    """The kernel of an op, its steps, and the pads before and after each dimension."""

    def __init__(self, node: Node, kernel: Sequence[int]) -> None:
        count = len(kernel)
        if count not in _CONV:
            raise node.refused(f"torch has no kernel of {count} dimensions")
        self.kernel = tuple(kernel)
        self.strides = tuple(node.attr("strides", (1,) * count))
        self.dilations = tuple(node.attr("dilations", (1,) * count))
        given = node.attr("pads", (0,) * (2 * count))
        self.before, self.after = list(given[:count]), list(given[count:])
        kind = str(node.attr("auto_pad", "NOTSET"))
        if kind.startswith("SAME"):
            for at, size in enumerate(node.shape()[2:]):
                span = (self.kernel[at] - 1) * self.dilations[at] + 1
                total = max((-(-size // self.strides[at]) - 1) * self.strides[at] + span - size, 0)
                small = total // 2
                self.before[at] = small if kind == "SAME_UPPER" else total - small
                self.after[at] = total - self.before[at]

    @property
    def even(self) -> bool:
        """Whether both sides of every dimension have the same pad."""
        return self.before == self.after

    @property
    def flat(self) -> list[int]:
        """The pads as F.pad takes them."""
        return [size for pair in zip(self.before[::-1], self.after[::-1], strict=True) for size in pair]

    def refuse_outside(self, node: Node) -> None:
        """Raise where the last window begins in the pad behind: torch leaves it out."""
        for size, out, before, step in zip(node.shape()[2:], node.out[2:], self.before, self.strides, strict=True):
            if (out - 1) * step >= size + before:
                raise node.refused("its last window begins behind the input, which torch leaves out")

    def reached(self, size: Sequence[int], out: Sequence[int]) -> bool:
        """Whether the pads reach no further than the windows of an output do: no rounding up."""
        return all(
            (n + b + a - (k - 1) * d - 1) // s + 1 == o
            for n, b, a, k, d, s, o in zip(
                size, self.before, self.after, self.kernel, self.dilations, self.strides, out, strict=True
            )
        )


def _convolution(node: Node) -> Run:
    window, groups = _Window(node, node.shape(1)[2:]), node.attr("group", 1)
    call = _CONV[len(window.kernel)]
    strides, dilations = window.strides, window.dilations
    if window.even:
        pads = tuple(window.before)
        return lambda x, weight, bias=None: call(x, weight, bias, strides, pads, dilations, groups)
    flat = window.flat
    return lambda x, weight, bias=None: call(F.pad(x, flat), weight, bias, strides, 0, dilations, groups)


def _turned_convolution(node: Node) -> Run:
    window, groups = _Window(node, node.shape(1)[2:]), node.attr("group", 1)
    count = len(window.kernel)
    call, strides, dilations = _TURNED[count], window.strides, window.dilations
    extra = list(node.attr("output_padding", (0,) * count))
    full = [
        (size - 1) * s + (k - 1) * d + 1
        for size, s, k, d in zip(node.shape()[2:], strides, window.kernel, dilations, strict=True)
    ]
    out = node.out[2:]
    kind = str(node.attr("auto_pad", "NOTSET"))
    if node.attr("output_shape") is not None or kind.startswith("SAME"):
        for at in range(count):
            total = full[at] + extra[at] - out[at]
            small = total // 2
            window.before[at] = small if kind == "SAME_UPPER" else total - small
            window.after[at] = total - window.before[at]
    if (
        window.even
        and min(window.before) >= 0
        and all(e < max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True))
    ):
        pads, more = tuple(window.before), tuple(extra)
        return lambda x, weight, bias=None: call(x, weight, bias, strides, pads, more, groups, dilations)
    crop = [
        size for b, o, f in zip(window.before[::-1], out[::-1], full[::-1], strict=True) for size in (-b, o + b - f)
    ]

    def run(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        made = F.pad(call(x, weight, None, strides, 0, 0, groups, dilations), crop)
        return made if bias is None else made + bias.reshape(-1, *(1,) * count)

    return run


def _max_pool(node: Node) -> Run:
    window = _Window(node, node.attr("kernel_shape"))
    count = len(window.kernel)
    call, size, out = _MAX[count], node.shape()[2:], node.out[2:]
    window.refuse_outside(node)
    ceil = not window.reached(size, out)
    if len(node.call.outputs) > 1 and (not window.even or node.attr("storage_order", 0)):
        raise node.refused("its indices with uneven pads or by columns are not torch's")
    halves = all(2 * b <= k for b, k in zip(window.before, window.kernel, strict=True))
    kernel, strides, dilations = window.kernel, window.strides, window.dilations
    pads: Any = tuple(window.before)
    if len(node.call.outputs) > 1:
        return _indexed(call, (kernel, strides, pads, dilations, ceil), prod(size))
    if window.even and halves:
        return lambda x: call(x, kernel, strides, pads, dilations, ceil)
    if node.operand(0).dtype in ("uint8", "int8"):
        raise node.refused("integers with uneven pads are not built")
    flat = window.flat
    return lambda x: call(F.pad(x, flat, value=-inf), kernel, strides, 0, dilations, ceil)


def _indexed(call: Any, settings: Any, plane: int) -> Run:
    """Maxima with their places, which ONNX counts over batch and channels as well."""

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        found, places = call(x, *settings, return_indices=True)
        planes = torch.arange(x.shape[0] * x.shape[1], device=x.device).reshape(
            x.shape[0], x.shape[1], *(1,) * (x.dim() - 2)
        )
        return found, places + planes * plane

    return run


def _average_pool(node: Node) -> Run:
    window = _Window(node, node.attr("kernel_shape"))
    count, counted = len(window.kernel), bool(node.attr("count_include_pad", 0))
    call, size, out = _AVERAGE[count], node.shape()[2:], node.out[2:]
    window.refuse_outside(node)
    ceil = not window.reached(size, out)
    kernel, strides = window.kernel, window.strides
    halves = all(2 * b <= k for b, k in zip(window.before, kernel, strict=True))
    pads: Any = tuple(window.before)
    if window.even and halves and set(window.dilations) == {1}:
        return lambda x: call(x, kernel, strides, pads, ceil, counted)
    if set(window.dilations) != {1} or ceil:
        raise node.refused("dilations, or uneven pads with ceil_mode, are not torch's")
    flat = window.flat
    if counted:
        return lambda x: call(F.pad(x, flat), kernel, strides)

    def run(x: Tensor) -> Tensor:
        share = call(F.pad(torch.ones_like(x[:1, :1]), flat), kernel, strides)
        return call(F.pad(x, flat), kernel, strides) / share

    return run


def _lp_pool(node: Node) -> Run:
    window, power = _Window(node, node.attr("kernel_shape")), float(node.attr("p", 2))
    if set(window.dilations) != {1} or not window.reached(node.shape()[2:], node.out[2:]):
        raise node.refused("dilations and ceil_mode are not torch's")
    call, flat, kernel, strides, size = (
        _AVERAGE[len(window.kernel)], window.flat, window.kernel, window.strides, prod(window.kernel)
    )  # fmt: skip
    return lambda x: (call(F.pad(x, flat).abs() ** power, kernel, strides) * size) ** (1 / power)


def _global(node: Node) -> tuple[int, ...]:
    return tuple(range(2, node.rank))


def _global_average(node: Node) -> Run:
    axes = _global(node)
    return lambda x: x.mean(axes, keepdim=True)


def _global_max(node: Node) -> Run:
    if node.rank not in (3, 4, 5):
        raise node.refused(f"torch has no pooling over {node.rank - 2} dimensions")
    call, size = _MAX[node.rank - 2], node.shape()[2:]
    return lambda x: call(x, size)


def _global_lp(node: Node) -> Run:
    axes, power = _global(node), float(node.attr("p", 2))
    return lambda x: torch.linalg.vector_norm(x, power, axes, keepdim=True)


def _adaptive(node: Node) -> Run:
    size = node.out[-2:]
    return lambda x: F.adaptive_avg_pool2d(x, size)


OPS: Table = {
    "Conv": _convolution,
    "ConvTranspose": _turned_convolution,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "LpPool": _lp_pool,
    "GlobalAveragePool": _global_average,
    "GlobalMaxPool": _global_max,
    "GlobalLpPool": _global_lp,
}
FUSED: Table = {"AveragePool": _adaptive}
