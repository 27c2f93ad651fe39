"""Networks of cells found by search: AmoebaNet-D and DARTS.

AmoebaNet-D: Real et al., "Regularized Evolution for Image Classifier Architecture Search", AAAI 2019, as the
published TPU model defines it, with the L cells and D filters of Huang et al., "GPipe", NeurIPS 2019, table 1.
DARTS: Liu et al., "DARTS: Differentiable Architecture Search", ICLR 2019, the cells of figures 4 and 5 (second
order, CIFAR-10): 20 cells, 36 channels at first; without the auxiliary classifier and without dropped paths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx

from models.descriptions import AMOEBANET_D, DARTS, Wiring
from models.graphs.builder import Value
from models.graphs.net import Extent, Net

Operation = Callable[[Net, Value, int], Value]
"""What is applied to an input of the cell or to an earlier sum in it; the last argument is the stride."""


def _cell(net: Net, wiring: Wiring, inputs: Sequence[Value], stride: int) -> Value:
    """A cell over its two inputs; only what reads them directly has the stride."""
    states = list(inputs)
    for pairs in zip(wiring.pairs[::2], wiring.pairs[1::2], strict=True):
        parts = [OPERATIONS[name](net, states[source], stride if source < 2 else 1) for name, source in pairs]
        states.append(net.add(*parts))
    return net.concat([states[index] for index in wiring.joined])


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


OPERATIONS: dict[str, Operation] = {
    "convolution 1": _conv_1x1,
    "largest": _largest_3x3,
    "identity": _identity,
    "factorised 7": _conv_1x7_7x1,
    "average": _average_3x3,
    "largest 2": _largest_2x2,
    "convolution 3": _conv_3x3,
    "separable 3": _separable_3x3,
    "dilated 3": _dilated_3x3,
}


# AmoebaNet-D


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
            wiring = AMOEBANET_D.reduction if reduces else AMOEBANET_D.normal
            x, before = _cell(net, wiring, (latest, before), 2 if reduces else 1), x
        halved = reduces
    return net.model(net.classify(x, 1000))


# DARTS

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
            wiring = DARTS.reduction if reduces else DARTS.normal
            x, before = _cell(net, wiring, (before, _convolve(net, x, channels)), 2 if reduces else 1), x
        halved = reduces
    return net.model(net.classify(x, 10))
