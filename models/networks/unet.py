"""U-Net (Ronneberger et al., 2015) with batch norm and padded convolutions: 31.0 million parameters.

Widths 64..1024, four levels, long skips concatenated: the irregular graph of this zoo.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

Norm = Literal["batch", "group"]
GROUP_CHANNELS = 4


class DoubleConv(nn.Sequential):
    """Twice 3x3 convolution, norm (batch, or group of `GROUP_CHANNELS` channels each), ReLU in place."""

    def __init__(self, in_channels: int, out_channels: int, norm: Norm = "batch") -> None:
        layers: list[nn.Module] = []
        for channels in (in_channels, out_channels):
            layers.append(nn.Conv2d(channels, out_channels, 3, padding=1, bias=False))
            if norm == "batch":
                layers.append(nn.BatchNorm2d(out_channels))
            else:
                layers.append(nn.GroupNorm(out_channels // GROUP_CHANNELS, out_channels))
            layers.append(nn.ReLU(inplace=True))
        super().__init__(*layers)


class UNet(nn.Module):
    """Encoder with max pooling, decoder with transposed convolutions, one skip per level."""

    def __init__(
        self, classes: int = 2, widths: tuple[int, ...] = (64, 128, 256, 512, 1024), norm: Norm = "batch"
    ) -> None:
        super().__init__()
        inputs = (3, *widths[:-1])
        self.down = nn.ModuleList(DoubleConv(i, o, norm) for i, o in zip(inputs, widths, strict=True))
        self.pool = nn.MaxPool2d(2)
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))  # (1024, 512), (512, 256), ...
        self.grow = nn.ModuleList(nn.ConvTranspose2d(deep, wide, 2, stride=2) for deep, wide in pairs)
        self.up = nn.ModuleList(DoubleConv(deep, wide, norm) for deep, wide in pairs)
        self.head = nn.Conv2d(widths[0], classes, 1)

    def descend(self, level: int, x: Tensor) -> Tensor:
        """One level of the encoder: [N, C, H, W] -> [N, widths[level], H / 2, W / 2], at level 0 unpooled."""
        return self.down[level](self.pool(x) if level else x)

    def ascend(self, step: int, x: Tensor, skip: Tensor) -> Tensor:
        """One step of the decoder: [N, 2 * C, H, W] and the skip [N, C, 2 * H, 2 * W] -> the skip's shape."""
        return self.up[step](torch.cat([skip, self.grow[step](x)], dim=1))

    def forward(self, images: Tensor) -> Tensor:
        """[N, 3, H, W] with H and W multiples of 16 -> class scores [N, classes, H, W]."""
        skips: list[Tensor] = []
        x = images
        for level in range(len(self.down)):
            x = self.descend(level, x)
            skips.append(x)
        skips.pop()
        for step in range(len(self.up)):
            x = self.ascend(step, x, skips.pop())
        return self.head(x)
