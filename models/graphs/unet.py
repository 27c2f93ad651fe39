"""U-Net: Ronneberger et al., "U-Net: Convolutional Networks for Biomedical Image Segmentation", MICCAI 2015, figure 1.

Unpadded convolutions, so that tiles of 572 pixels give maps of 388, and skips are cropped; dropout at the end of
the contracting path (section 3.1), in its two deepest levels.
"""

from __future__ import annotations

import onnx

from .builder import Value
from .net import Net

WIDTHS = (64, 128, 256, 512, 1024)
DROPOUT = 0.5


def unet(batch: int, widths: tuple[int, ...] = WIDTHS) -> onnx.ModelProto:
    """Grey tiles of 572 x 572 -> scores of two classes, 388 x 388 with as many levels as the paper's."""
    net = Net("unet")
    x = net.input("tiles", (batch, 1, 572, 572))
    skips: list[Value] = []
    for level, width in enumerate(widths):
        with net.scope(f"down{level}"):
            x = _twice(net, net.max_pool(x, 2, stride=2) if level else x, width)
            if level >= len(widths) - 2:
                x = net.dropout(x, DROPOUT)
            skips.append(x)
    skips.pop()
    for level in range(len(widths) - 2, -1, -1):
        with net.scope(f"up{level}"):
            grown = _grown(net, x, widths[level])
            skip = skips.pop()
            starts = [(tall - side) // 2 for tall, side in zip(skip.shape[2:], grown.shape[2:], strict=True)]
            stops = [start + side for start, side in zip(starts, grown.shape[2:], strict=True)]
            x = _twice(net, net.concat([net.crop(skip, starts, stops), grown]), widths[level])
    with net.scope("head"):
        x = net.conv(x, 2, bias=True)
    return net.model(x)


def _twice(net: Net, x: Value, width: int) -> Value:
    for _ in range(2):
        x = net.relu(net.conv(x, width, 3, padding="valid", bias=True))
    return x


def _grown(net: Net, x: Value, width: int) -> Value:
    """A transposed 2x2 convolution: twice the extent."""
    batch, channels, height, wide = x.shape
    weights = [net.weight("conv.weight", (channels, width, 2, 2)), net.weight("conv.bias", (width,))]
    shape = (batch, width, 2 * height, 2 * wide)
    return net.op("ConvTranspose", [x, *weights], shape, kernel_shape=[2, 2], strides=[2, 2])
