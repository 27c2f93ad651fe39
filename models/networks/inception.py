"""Inception-v3 (Szegedy et al., CVPR 2016, table 1, filters of the reference model): 23,834,568 parameters.

Without the auxiliary classifier that it can be trained with. ReLUs act in place. Images from 75 x 75.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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

EPSILON = 1e-3


class Unit(nn.Sequential):
    """Convolution without bias, norm, ReLU in place; ``same`` pads by half of the kernel."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: Extent, stride: int = 1, *, same: bool = True
    ) -> None:
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (height // 2, width // 2) if same else (0, 0)
        super().__init__(
            nn.Conv2d(in_channels, out_channels, (height, width), stride, padding=padding, bias=False),
            nn.BatchNorm2d(out_channels, eps=EPSILON),
            nn.ReLU(inplace=True),
        )


def chain(channels: int, layers: Sequence[Layer], *, shrinks: bool = False) -> nn.Sequential:
    """Units one after another; with ``shrinks`` the last one has stride 2 and no padding."""
    units = []
    for number, (width, kernel) in enumerate(layers):
        last = shrinks and number == len(layers) - 1
        units.append(Unit(channels, width, kernel, 2 if last else 1, same=not last))
        channels = width
    return nn.Sequential(*units)


class Mixed(nn.Module):
    """Branches of convolutions and one behind an average pooling, concatenated."""

    def __init__(self, channels: int, branches: Sequence[Sequence[Layer]], pooled: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(chain(channels, layers) for layers in branches)
        self.pooled = Unit(channels, pooled, 1)
        self.channels = sum(layers[-1][0] for layers in branches) + pooled

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, channels, H, W]."""
        parts = [branch(x) for branch in self.branches]
        return torch.cat([*parts, self.pooled(F.avg_pool2d(x, 3, 1, padding=1))], dim=1)


class Shrink(nn.Module):
    """Half the extent: branches that end with stride 2 and a max pooling, concatenated."""

    def __init__(self, channels: int, branches: Sequence[Sequence[Layer]]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(chain(channels, layers, shrinks=True) for layers in branches)
        self.channels = sum(layers[-1][0] for layers in branches) + channels

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, channels, (H - 1) // 2, (W - 1) // 2]."""
        parts = [branch(x) for branch in self.branches]
        return torch.cat([*parts, F.max_pool2d(x, 3, 2)], dim=1)


class Fan(nn.Module):
    """A 1x3 and a 3x1 convolution of one input, concatenated."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.wide = Unit(channels, 384, (1, 3))
        self.tall = Unit(channels, 384, (3, 1))

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, 768, H, W]."""
        return torch.cat([self.wide(x), self.tall(x)], dim=1)


class Widest(nn.Module):
    """The last blocks, whose 3x3 convolutions fan out into a 1x3 and a 3x1."""

    channels = 320 + 2 * 768 + 192

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.point = Unit(channels, 320, 1)
        self.fanned = nn.Sequential(Unit(channels, 384, 1), Fan(384))
        self.fanned_deeper = nn.Sequential(Unit(channels, 448, 1), Unit(448, 384, 3), Fan(384))
        self.pooled = Unit(channels, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, 2048, H, W]."""
        average = F.avg_pool2d(x, 3, 1, padding=1)
        return torch.cat([self.point(x), self.fanned(x), self.fanned_deeper(x), self.pooled(average)], dim=1)


class Inception(nn.Module):
    """Stem, mixed blocks at three extents, global average pooling, dropout, classifier."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            Unit(3, 32, 3, 2, same=False),
            Unit(32, 32, 3, same=False),
            Unit(32, 64, 3),
            nn.MaxPool2d(3, 2),
            Unit(64, 80, 1),
            Unit(80, 192, 3, same=False),
            nn.MaxPool2d(3, 2),
        )
        channels = 192
        early: list[nn.Module] = []
        for pooled in INCEPTION_EARLY_POOLED:
            early.append(mixed := Mixed(channels, INCEPTION_EARLY, pooled))
            channels = mixed.channels
        early.append(shrink := Shrink(channels, INCEPTION_SHRINK_EARLY))
        channels = shrink.channels
        early += [Mixed(channels, inception_sevens(width), 192) for width in INCEPTION_MIDDLE_WIDTHS]
        self.early = nn.Sequential(*early)
        shrink = Shrink(channels, INCEPTION_SHRINK_LATE)
        self.late = nn.Sequential(shrink, Widest(shrink.channels), Widest(Widest.channels))
        self.dropout = nn.Dropout(DROPOUT)
        self.fc = nn.Linear(Widest.channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """[N, 3, H, W] -> class scores [N, classes]."""
        x = F.adaptive_avg_pool2d(self.late(self.early(self.stem(images))), 1)
        return self.fc(torch.flatten(self.dropout(x), 1))
