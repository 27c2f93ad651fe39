"""DenseNet-121, -169 and -201: Huang et al., "Densely Connected Convolutional Networks", CVPR 2017, table 1.

Bottleneck layers with growth rate 32 (DenseNet-BC), compression 0.5 between the dense blocks.
"""

from __future__ import annotations

import onnx

from models.graphs.net import Net

GROWTH = 32
BOTTLENECK = 4 * GROWTH


def densenet(layers: tuple[int, int, int, int], batch: int) -> onnx.ModelProto:
    """A DenseNet-BC for images of 224 x 224; every layer reads all earlier ones of its block, concatenated."""
    net = Net("densenet")
    with net.scope("stem"):
        x = net.relu(net.batch_norm(net.conv(net.input("images", (batch, 3, 224, 224)), 2 * GROWTH, 7, stride=2)))
        x = net.max_pool(x, 3, stride=2, padding="half")
    for block, count in enumerate(layers):
        if block:
            with net.scope(f"transition{block - 1}"):
                x = net.conv(net.relu(net.batch_norm(x)), x.shape[1] // 2)
                x = net.average_pool(x, 2, stride=2)
        features = [x]
        for layer in range(count):
            with net.scope(f"block{block}.layer{layer}"):
                x = net.concat(features) if len(features) > 1 else features[0]
                y = net.conv(net.relu(net.batch_norm(x)), BOTTLENECK)
                features.append(net.conv(net.relu(net.batch_norm(y)), GROWTH, 3))
        with net.scope(f"block{block}"):
            x = net.concat(features)
    with net.scope("head"):
        x = net.relu(net.batch_norm(x))
    return net.model(net.classify(x, 1000))
