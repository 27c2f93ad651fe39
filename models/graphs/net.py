"""The layers that networks consist of, each an op or a few; shapes are worked out here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
from onnx import TensorProto

from models.graphs.builder import Builder, Value

Padding = Literal["half", "valid", "same"]
Extent = int | tuple[int, int]


def same_padding(extent: int, kernel: int, stride: int) -> tuple[int, int]:
    """What TensorFlow's ``SAME`` adds (before, after) one axis: the output has ceil(extent / stride) elements."""
    total = max((-(-extent // stride) - 1) * stride + kernel - extent, 0)
    return total // 2, total - total // 2


def _pair(extent: Extent) -> tuple[int, int]:
    return (extent, extent) if isinstance(extent, int) else extent


class Net(Builder):
    """A graph with layers. Images are [N, C, H, W], texts [N, T] and [N, T, width]."""

    # Any shape

    def unary(self, op_type: str, x: Value, **attributes: object) -> Value:
        """An op whose output has the shape of its only input."""
        return self.op(op_type, [x], x.shape, dtype=x.dtype, **attributes)

    def relu(self, x: Value) -> Value:
        """max(x, 0)."""
        return self.unary("Relu", x)

    def silu(self, x: Value) -> Value:
        """x * sigmoid(x), two ops."""
        return self.by_hand(self.arithmetic("Mul", x, self.unary("Sigmoid", x)))

    def arithmetic(self, op_type: str, *operands: Value) -> Value:
        """An elementwise op of broadcast operands."""
        shape = np.broadcast_shapes(*(value.shape for value in operands))
        return self.op(op_type, operands, shape, dtype=operands[0].dtype)

    def add(self, x: Value, y: Value) -> Value:
        """x + y, broadcast."""
        return self.arithmetic("Add", x, y)

    def concat(self, parts: Sequence[Value], axis: int = 1) -> Value:
        """The parts joined along an axis."""
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return self.op("Concat", parts, shape, axis=axis)

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """The same elements in another shape."""
        return self.op("Reshape", [x, self.constant(shape, np.int64)], shape)

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        """Axes in another order."""
        return self.op("Transpose", [x], [x.shape[axis] for axis in order], perm=list(order))

    def crop(self, x: Value, starts: Sequence[int], stops: Sequence[int]) -> Value:
        """Part of each feature map: rows and columns from ``starts`` to before ``stops``."""
        shape = (*x.shape[:2], *(stop - start for start, stop in zip(starts, stops, strict=True)))
        bounds = [self.constant(numbers, np.int64) for numbers in (starts, stops, (2, 3))]
        return self.op("Slice", [x, *bounds], shape)

    def dropout(self, x: Value, rate: float) -> Value:
        """Training-mode dropout with its mask."""
        inputs = [x, self.number(rate), self.constant(True, np.bool_)]
        return self.ops("Dropout", inputs, [(x.shape, x.dtype), (x.shape, TensorProto.BOOL)])[0]

    # Layers of image networks

    def conv(
        self,
        x: Value,
        channels: int,
        kernel: Extent = 1,
        *,
        stride: Extent = 1,
        padding: Padding = "half",
        groups: int = 1,
        dilation: int = 1,
        bias: bool = False,
    ) -> Value:
        """A convolution: ``half`` pads half the kernel on every side, ``same`` as TensorFlow, ``valid`` nothing."""
        window = self._window(x, kernel, stride, padding, dilation)
        weights = [self.weight("conv.weight", (channels, x.shape[1] // groups, *window.kernel))]
        if bias:
            weights.append(self.weight("conv.bias", (channels,)))
        shape = (x.shape[0], channels, *window.extents)
        return self.op("Conv", [x, *weights], shape, **window.attributes, dilations=[dilation, dilation], group=groups)

    def max_pool(self, x: Value, kernel: int, *, stride: int, padding: Padding = "valid") -> Value:
        """The largest of each window."""
        window = self._window(x, kernel, stride, padding)
        return self.op("MaxPool", [x], (*x.shape[:2], *window.extents), **window.attributes)

    def average_pool(
        self, x: Value, kernel: int, *, stride: int, padding: Padding = "valid", count_padding: bool = False
    ) -> Value:
        """The mean of each window."""
        window = self._window(x, kernel, stride, padding)
        shape = (*x.shape[:2], *window.extents)
        return self.op("AveragePool", [x], shape, **window.attributes, count_include_pad=int(count_padding))

    def batch_norm(self, x: Value, epsilon: float = 1e-5) -> Value:
        """Batch normalisation as exporters write one that is trained: four vectors, one output."""
        names = ("weight", "bias", "running_mean", "running_var")
        vectors = [self.weight(f"bn.{name}", x.shape[1:2]) for name in names]
        return self.op("BatchNormalization", [x, *vectors], x.shape, epsilon=epsilon)

    def group_norm(self, x: Value, groups: int, epsilon: float = 1e-6) -> Value:
        """Normalisation over groups of channels, scale and bias per channel."""
        vectors = [self.weight(f"gn.{name}", x.shape[1:2]) for name in ("weight", "bias")]
        return self.op("GroupNormalization", [x, *vectors], x.shape, num_groups=groups, epsilon=epsilon)

    def classify(self, x: Value, classes: int) -> Value:
        """Global average, then scores of the classes."""
        pooled = self.op("GlobalAveragePool", [x], (*x.shape[:2], 1, 1))
        return self.linear(self.flatten(pooled), classes)

    def flatten(self, x: Value) -> Value:
        """[N, ...] -> [N, elements]."""
        return self.op("Flatten", [x], (x.shape[0], prod(x.shape[1:])), axis=1)

    # Layers of texts

    def linear(self, x: Value, width: int, *, bias: bool = True) -> Value:
        """x W + b over the last axis: a Gemm for a matrix, else a MatMul and an Add."""
        if len(x.shape) == 2:
            weight = self.weight("linear.weight", (width, x.shape[1]))
            vectors = [self.weight("linear.bias", (width,))] if bias else []
            return self.op("Gemm", [x, weight, *vectors], (x.shape[0], width), transB=1)
        product = self.matmul(x, self.weight("linear.weight", (x.shape[-1], width)))
        return self.add(product, self.weight("linear.bias", (width,))) if bias else product

    def matmul(self, x: Value, y: Value) -> Value:
        """The matrix product over the last two axes."""
        batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        return self.op("MatMul", [x, y], (*batch, x.shape[-2], y.shape[-1]))

    def layer_norm(self, x: Value, epsilon: float = 1e-5) -> Value:
        """Normalisation over the last axis."""
        vectors = [self.weight(f"ln.{name}", x.shape[-1:]) for name in ("weight", "bias")]
        return self.op("LayerNormalization", [x, *vectors], x.shape, axis=-1, epsilon=epsilon)

    def _window(self, x: Value, kernel: Extent, stride: Extent, padding: Padding, dilation: int = 1) -> _Window:
        kernels, strides = _pair(kernel), _pair(stride)
        pads, extents = [], []
        for extent, size, step in zip(x.shape[2:], kernels, strides, strict=True):
            reach = (size - 1) * dilation + 1
            half = (reach // 2, reach // 2)
            pad = (0, 0) if padding == "valid" else half if padding == "half" else same_padding(extent, reach, step)
            pads.append(pad)
            extents.append((extent + sum(pad) - reach) // step + 1)
        return _Window(kernels, strides, (pads[0][0], pads[1][0], pads[0][1], pads[1][1]), (extents[0], extents[1]))


@dataclass(frozen=True, slots=True)
class _Window:
    """How a kernel moves over feature maps, and the extents of what it makes."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    extents: tuple[int, int]

    @property
    def attributes(self) -> dict[str, Any]:
        return {"kernel_shape": list(self.kernel), "strides": list(self.strides), "pads": list(self.pads)}
