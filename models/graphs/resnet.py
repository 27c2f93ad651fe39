"""Residual networks.

ResNet-50, -101 and -152: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, table 1, with
the stride of a bottleneck in its 3x3 convolution, where trainers have moved it since. ResNet-200 and
ResNet-1001: He et al., "Identity Mappings in Deep Residual Networks", ECCV 2016, section 4 and appendix:
pre-activation, the stride also in the 3x3 convolution; ResNet-1001 is for CIFAR with 9 n + 2 layers, n = 111.
"""

from __future__ import annotations

import onnx

from models.graphs.builder import Value
from models.graphs.net import Net

EXPANSION = 4


def resnet(blocks: tuple[int, int, int, int], batch: int) -> onnx.ModelProto:
    """A post-activation bottleneck network for images of 224 x 224."""
    net = Net("resnet")
    x = _stem(net, net.input("images", (batch, 3, 224, 224)))
    for stage, count in enumerate(blocks):
        for block in range(count):
            with net.scope(f"stage{stage}.block{block}"):
                x = _bottleneck(net, x, 64 << stage, 2 if stage and not block else 1)
    return net.model(net.classify(x, 1000))


def preactivation_resnet(blocks: tuple[int, int, int, int], batch: int) -> onnx.ModelProto:
    """A pre-activation bottleneck network for images of 224 x 224."""
    net = Net("preactivation_resnet")
    x = _stem(net, net.input("images", (batch, 3, 224, 224)))
    return _preactivated(net, x, blocks, 64, 1000)


def cifar_resnet(depth: int, batch: int) -> onnx.ModelProto:
    """The pre-activation bottleneck network of ``depth`` = 9 n + 2 layers for images of 32 x 32."""
    net = Net("cifar_resnet")
    with net.scope("stem"):
        x = net.conv(net.input("images", (batch, 3, 32, 32)), 16, 3)
    count = (depth - 2) // 9
    return _preactivated(net, x, (count, count, count), 16, 10)


def _stem(net: Net, images: Value) -> Value:
    with net.scope("stem"):
        x = net.relu(net.batch_norm(net.conv(images, 64, 7, stride=2)))
        return net.max_pool(x, 3, stride=2, padding="half")


def _bottleneck(net: Net, x: Value, width: int, stride: int) -> Value:
    shortcut = x
    y = net.relu(net.batch_norm(net.conv(x, width)))
    y = net.relu(net.batch_norm(net.conv(y, width, 3, stride=stride)))
    y = net.batch_norm(net.conv(y, EXPANSION * width))
    if x.shape != y.shape:
        shortcut = net.batch_norm(net.conv(x, EXPANSION * width, stride=stride))
    return net.relu(net.add(y, shortcut))


def _preactivated(net: Net, x: Value, blocks: tuple[int, ...], width: int, classes: int) -> onnx.ModelProto:
    for stage, count in enumerate(blocks):
        for block in range(count):
            with net.scope(f"stage{stage}.block{block}"):
                x = _preactivation_bottleneck(net, x, width << stage, 2 if stage and not block else 1)
    with net.scope("head"):
        x = net.relu(net.batch_norm(x))
    return net.model(net.classify(x, classes))


def _preactivation_bottleneck(net: Net, x: Value, width: int, stride: int) -> Value:
    """The first block of a stage projects what is already normalised."""
    active = net.relu(net.batch_norm(x))
    y = net.relu(net.batch_norm(net.conv(active, width)))
    y = net.relu(net.batch_norm(net.conv(y, width, 3, stride=stride)))
    y = net.conv(y, EXPANSION * width)
    projected = x.shape != y.shape
    return net.add(y, net.conv(active, EXPANSION * width, stride=stride) if projected else x)
