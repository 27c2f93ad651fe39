"""U-Net (Ronneberger et al., 2015) with batch norm and padded convolutions: 31.0 million parameters.

Widths 64..1024, four levels, long skips concatenated: the irregular graph of this zoo.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DoubleConv(nn.Sequential):
    """Twice 3x3 convolution, batch norm, ReLU in place."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        layers: list[nn.Module] = []
        for channels in (in_channels, out_channels):
            convolution = nn.Conv2d(channels, out_channels, 3, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True)]
        super().__init__(*layers)


class UNet(nn.Module):
    """Encoder with max pooling, decoder with transposed convolutions, one skip per level."""

    def __init__(self, classes: int = 2, widths: tuple[int, ...] = (64, 128, 256, 512, 1024)) -> None:
        super().__init__()
        inputs = (3, *widths[:-1])
        self.down = nn.ModuleList(DoubleConv(i, o) for i, o in zip(inputs, widths, strict=True))
        self.pool = nn.MaxPool2d(2)
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))  # (1024, 512), (512, 256), ...
        self.grow = nn.ModuleList(nn.ConvTranspose2d(deep, wide, 2, stride=2) for deep, wide in pairs)
        self.up = nn.ModuleList(DoubleConv(deep, wide) for deep, wide in pairs)
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """[N, 3, H, W] with H and W multiples of 16 -> class scores [N, classes, H, W]."""
        skips: list[Tensor] = []
        x = images
        for level, block in enumerate(self.down):
            x = block(self.pool(x) if level else x)
            skips.append(x)
        skips.pop()
        for enlarge, block in zip(self.grow, self.up, strict=True):
            x = block(torch.cat([skips.pop(), enlarge(x)], dim=1))
        return self.head(x)


def unet() -> UNet:
    """U-Net with the classic widths and two classes."""
    return UNet()
