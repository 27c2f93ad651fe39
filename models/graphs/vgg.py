"""VGG-16 and VGG-19 (configurations D and E): Simonyan and Zisserman, ICLR 2015, table 1, with dropout."""

from __future__ import annotations

import onnx

from models.descriptions import DROPOUT, VGG_WIDTHS
from models.graphs.net import Net


def vgg(convolutions: tuple[int, int, int, int, int], batch: int) -> onnx.ModelProto:
    """3x3 convolutions with bias, five poolings, three dense layers; images of 224 x 224."""
    net = Net("vgg")
    x = net.input("images", (batch, 3, 224, 224))
    for stage, (count, width) in enumerate(zip(convolutions, VGG_WIDTHS, strict=True)):
        with net.scope(f"stage{stage}"):
            for _ in range(count):
                x = net.relu(net.conv(x, width, 3, bias=True))
            x = net.max_pool(x, 2, stride=2)
    x = net.flatten(x)
    for layer in range(2):
        with net.scope(f"dense{layer}"):
            x = net.dropout(net.relu(net.linear(x, 4096)), DROPOUT)
    return net.model(net.linear(x, 1000))
