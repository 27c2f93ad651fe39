"""Networks of cells found by search whose cells are lists of (operation, input): AmoebaNet-D and DARTS.

AmoebaNet-D: Real et al., "Regularized Evolution for Image Classifier Architecture Search", AAAI 2019, as the
published TPU model defines it, with the L cells and D filters of Huang et al., "GPipe", NeurIPS 2019, table 1.
DARTS: Liu et al., "DARTS: Differentiable Architecture Search", ICLR 2019, the cells of figures 4 and 5 (second
order, CIFAR-10): 20 cells, 36 channels at first; without the auxiliary classifier and without dropped paths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from models.graphs.builder import Value
from models.graphs.net import Extent, Net

Operation = Callable[[Net, Value, int], Value]
"""What is applied to an input of the cell or to an earlier sum in it; the last argument is the stride."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Pairs of (operation, index of its input) whose results are added; inputs of the cell are 0 and 1.

    Sums are numbered on from 2; those in ``joined`` are concatenated to the output.
    """

    pairs: tuple[tuple[Operation, int], ...]
    joined: tuple[int, ...]

    def build(self, net: Net, inputs: Sequence[Value], stride: int) -> Value:
        """The cell over its two inputs; only what reads them directly has the stride."""
        states = list(inputs)
        for (left, first), (right, second) in zip(self.pairs[::2], self.pairs[1::2], strict=True):
            parts = [op(net, states[i], stride if i < 2 else 1) for op, i in ((left, first), (right, second))]
            states.append(net.add(*parts))
        return net.concat([states[index] for index in self.joined])


# Operations


def _convolve(net: Net, x: Value, channels: int, kernel: Extent = 1, stride: Extent = 1) -> Value:
    """ReLU, convolution, norm."""
    return net.batch_norm(net.conv(net.relu(x), channels, kernel, stride=stride))


def _halved(net: Net, x: Value, channels: int, *, pads: bool) -> Value:
    """Half the extent, half of the channels from even positions and half from odd ones."""
    x = net.relu(x)
    height, width = x.shape[2:]
    shifted = net.crop(x, (1, 1), (height, width))
    if pads:
        edges = net.constant((0, 0, 0, 0, 0, 0, 1, 1), np.int64)
        shifted = net.op("Pad", [shifted, edges], x.shape)
    halves = [net.conv(part, channels // 2, stride=2, padding="valid") for part in (x, shifted)]
    return net.batch_norm(net.concat(halves))


def _identity(net: Net, x: Value, stride: int) -> Value:
    return x if stride == 1 else _halved(net, x, x.shape[1], pads=False)


def _average_3x3(net: Net, x: Value, stride: int) -> Value:
    return net.average_pool(x, 3, stride=stride, padding="half")


def _largest_3x3(net: Net, x: Value, stride: int) -> Value:
    return net.max_pool(x, 3, stride=stride, padding="half")


def _largest_2x2(net: Net, x: Value, stride: int) -> Value:
    return net.max_pool(x, 2, stride=stride)


def _conv_1x1(net: Net, x: Value, stride: int) -> Value:
    return _convolve(net, x, x.shape[1], 1, stride)


def _conv_3x3(net: Net, x: Value, stride: int) -> Value:
    """Through a quarter of the channels."""
    channels = x.shape[1]
    x = _convolve(net, x, channels // 4)
    return _convolve(net, _convolve(net, x, channels // 4, 3, stride), channels)


def _conv_1x7_7x1(net: Net, x: Value, stride: int) -> Value:
    """Through a quarter of the channels, each direction with its own stride."""
    channels = x.shape[1]
    x = _convolve(net, x, channels // 4)
    x = _convolve(net, x, channels // 4, (1, 7), (1, stride))
    x = _convolve(net, x, channels // 4, (7, 1), (stride, 1))
    return _convolve(net, x, channels)


def _separable_3x3(net: Net, x: Value, stride: int) -> Value:
    """Twice ReLU, depthwise and pointwise convolution, norm."""
    for step in (stride, 1):
        x = net.conv(net.relu(x), x.shape[1], 3, stride=step, groups=x.shape[1])
        x = net.batch_norm(net.conv(x, x.shape[1]))
    return x


def _dilated_3x3(net: Net, x: Value, stride: int) -> Value:
    """ReLU, depthwise convolution of every second position, pointwise convolution, norm."""
    x = net.conv(net.relu(x), x.shape[1], 3, stride=stride, groups=x.shape[1], dilation=2)
    return net.batch_norm(net.conv(x, x.shape[1]))


# AmoebaNet-D

AMOEBANET_NORMAL = Cell(
    (
        (_conv_1x1, 1), (_largest_3x3, 1), (_identity, 1), (_conv_1x7_7x1, 0), (_conv_1x1, 0),
        (_conv_1x7_7x1, 0), (_largest_3x3, 2), (_identity, 2), (_average_3x3, 1), (_conv_1x1, 5),
    ),
    (0, 3, 4, 6),
)  # fmt: skip
AMOEBANET_REDUCTION = Cell(
    (
        (_largest_2x2, 0), (_largest_3x3, 0), (_identity, 2), (_conv_3x3, 1), (_conv_1x7_7x1, 2),
        (_largest_3x3, 2), (_identity, 3), (_largest_2x2, 1), (_average_3x3, 2), (_conv_1x1, 3),
    ),
    (4, 5, 6),
)  # fmt: skip


def amoebanet_d(cells: int, filters: int, batch: int) -> onnx.ModelProto:
    """AmoebaNet-D (``cells``, ``filters``) for images of 224 x 224: input 0 of a cell is the latest output."""
    net = Net("amoebanet_d")
    channels = filters // 4
    with net.scope("stem"):
        x = before = _convolve(net, net.input("images", (batch, 3, 224, 224)), channels, 3, 2)
    normal = (False,) * (cells // 3)
    reductions = (True, True, *normal, True, *normal, True, *normal)
    halved = False
    for number, reduces in enumerate(reductions):
        channels *= 2 if reduces else 1
        with net.scope(f"cell{number}"):
            latest = _convolve(net, x, channels)
            if halved:
                before = _halved(net, before, channels, pads=True)
            elif before.shape[1] != channels:
                before = _convolve(net, before, channels)
            cell = AMOEBANET_REDUCTION if reduces else AMOEBANET_NORMAL
            x, before = cell.build(net, (latest, before), 2 if reduces else 1), x
        halved = reduces
    return net.model(net.classify(x, 1000))


# DARTS

DARTS_NORMAL = Cell(
    (
        (_separable_3x3, 0), (_separable_3x3, 1), (_separable_3x3, 0), (_separable_3x3, 1),
        (_separable_3x3, 1), (_identity, 0), (_identity, 0), (_dilated_3x3, 2),
    ),
    (2, 3, 4, 5),
)  # fmt: skip
DARTS_REDUCTION = Cell(
    (
        (_largest_3x3, 0), (_largest_3x3, 1), (_identity, 2), (_largest_3x3, 1),
        (_largest_3x3, 0), (_identity, 2), (_identity, 2), (_largest_3x3, 1),
    ),
    (2, 3, 4, 5),
)  # fmt: skip
STEM_MULTIPLIER = 3


def darts_cifar(cells: int, channels: int, batch: int) -> onnx.ModelProto:
    """The DARTS network for CIFAR-10: input 0 of a cell is the output before the latest; reductions at 1/3 and 2/3."""
    net = Net("darts_cifar")
    with net.scope("stem"):
        images = net.input("images", (batch, 3, 32, 32))
        x = before = net.batch_norm(net.conv(images, STEM_MULTIPLIER * channels, 3))
    halved = False
    for number in range(cells):
        reduces = number in (cells // 3, 2 * cells // 3)
        channels *= 2 if reduces else 1
        with net.scope(f"cell{number}"):
            before = _halved(net, before, channels, pads=False) if halved else _convolve(net, before, channels)
            cell = DARTS_REDUCTION if reduces else DARTS_NORMAL
            x, before = cell.build(net, (before, _convolve(net, x, channels)), 2 if reduces else 1), x
        halved = reduces
    return net.model(net.classify(x, 10))
