"""Inception-v3: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", CVPR 2016, table 1.

With the details of the reference model that the paper leaves out (number of filters of each branch), and
with the auxiliary classifier that it is trained with: two outputs, 27.2 million parameters, 23.8 million
of them without the auxiliary classifier.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from models.descriptions import (
    DROPOUT,
    INCEPTION_EARLY,
    INCEPTION_EARLY_POOLED,
    INCEPTION_MIDDLE_WIDTHS,
    INCEPTION_SHRINK_EARLY,
    INCEPTION_SHRINK_LATE,
    Extent,
    Layer,
    inception_sevens,
)
from models.graphs.builder import Value
from models.graphs.net import Net, Padding


def inception_v3(batch: int) -> onnx.ModelProto:
    """Images of 299 x 299 -> scores of the main and of the auxiliary classifier."""
    net = Net("inception_v3")
    x = net.input("images", (batch, 3, 299, 299))
    with net.scope("stem"):
        x = _unit(net, x, 32, 3, 2, "valid")
        x = _unit(net, x, 32, 3, 1, "valid")
        x = net.max_pool(_unit(net, x, 64, 3), 3, stride=2)
        x = _unit(net, x, 80, 1)
        x = net.max_pool(_unit(net, x, 192, 3, 1, "valid"), 3, stride=2)
    for number, pooled in enumerate(INCEPTION_EARLY_POOLED):
        with net.scope(f"mixed5{'bcd'[number]}"):
            x = _mixed(net, x, INCEPTION_EARLY, pooled)
    with net.scope("mixed6a"):
        x = _shrink(net, x, INCEPTION_SHRINK_EARLY)
    for number, width in enumerate(INCEPTION_MIDDLE_WIDTHS):
        with net.scope(f"mixed6{'bcde'[number]}"):
            x = _mixed(net, x, inception_sevens(width), 192)
    with net.scope("auxiliary"):
        side = net.average_pool(x, 5, stride=3)
        side = _unit(net, _unit(net, side, 128, 1), 768, 5, 1, "valid")
        auxiliary = net.classify(side, 1000)
    with net.scope("mixed7a"):
        x = _shrink(net, x, INCEPTION_SHRINK_LATE)
    for number in range(2):
        with net.scope(f"mixed7{'bc'[number]}"):
            x = _widest(net, x)
    with net.scope("head"):
        pooled_features = net.op("GlobalAveragePool", [x], (*x.shape[:2], 1, 1))
        scores = net.linear(net.flatten(net.dropout(pooled_features, DROPOUT)), 1000)
    return net.model(scores, auxiliary)


def _unit(net: Net, x: Value, channels: int, kernel: Extent, stride: int = 1, padding: Padding = "half") -> Value:
    return net.relu(net.batch_norm(net.conv(x, channels, kernel, stride=stride, padding=padding), 1e-3))


def _branch(net: Net, x: Value, layers: Sequence[Layer]) -> Value:
    for channels, kernel in layers:
        x = _unit(net, x, channels, kernel)
    return x


def _pooled(net: Net, x: Value, channels: int) -> Value:
    average = net.average_pool(x, 3, stride=1, padding="half", count_padding=True)
    return _unit(net, average, channels, 1)


def _mixed(net: Net, x: Value, branches: Sequence[Sequence[Layer]], pooled: int) -> Value:
    """Branches of convolutions and one behind a pooling, joined."""
    return net.concat([*(_branch(net, x, layers) for layers in branches), _pooled(net, x, pooled)])


def _shrink(net: Net, x: Value, branches: Sequence[Sequence[Layer]]) -> Value:
    """Half the extent: the last convolution of each branch has stride 2, and a max pooling joins."""
    parts = []
    for layers in branches:
        *early, (channels, kernel) = layers
        parts.append(_unit(net, _branch(net, x, early), channels, kernel, 2, "valid"))
    return net.concat([*parts, net.max_pool(x, 3, stride=2)])


def _widest(net: Net, x: Value) -> Value:
    """The block whose 3x3 convolutions fan out into a 1x3 and a 3x1."""

    def fan(y: Value) -> Value:
        return net.concat([_unit(net, y, 384, (1, 3)), _unit(net, y, 384, (3, 1))])

    single = fan(_unit(net, x, 384, 1))
    double = fan(_branch(net, x, [(448, 1), (384, 3)]))
    return net.concat([_unit(net, x, 320, 1), single, double, _pooled(net, x, 192)])
