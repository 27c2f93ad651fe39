"""DenseNet-BC (Huang et al., "Densely Connected Convolutional Networks", CVPR 2017, table 1).

DenseNet-121, -161, -169 and -201: 7,978,856, 28,681,000, 14,149,480 and 20,013,928 parameters at 1000 classes.
Every layer concatenates what it adds to what it was given, so that a block's tensors are written once per layer
(the form whose memory is quadratic in the depth); ReLUs act in place.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BOTTLENECK = 4


class DenseLayer(nn.Module):
    """Norm, ReLU, 1x1 to `BOTTLENECK` times the growth, norm, ReLU, 3x3 to the growth, concatenated to the input."""

    def __init__(self, in_channels: int, growth: int) -> None:
        super().__init__()
        width = BOTTLENECK * growth
        self.norm1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, growth, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, C + growth, H, W]."""
        y = self.conv1(self.relu(self.norm1(x)))
        y = self.conv2(self.relu(self.norm2(y)))
        return torch.cat([x, y], dim=1)


class Transition(nn.Sequential):
    """Half of the channels at half of the extent."""

    def __init__(self, channels: int) -> None:
        super().__init__(
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels // 2, 1, bias=False),
            nn.AvgPool2d(2, 2),
        )


class DenseNet(nn.Module):
    """Stem, dense blocks with transitions between them, norm, global average pooling, classifier."""

    def __init__(self, depths: tuple[int, ...], growth: int, channels: int, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, padding=1),
        )
        blocks: list[nn.Module] = []
        for number, depth in enumerate(depths):
            if number:
                blocks.append(Transition(channels))
                channels //= 2
            layers: list[nn.Module] = []
            for _ in range(depth):
                layers.append(DenseLayer(channels, growth))
                channels += growth
            blocks.append(nn.Sequential(*layers))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(channels)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """[N, 3, H, W], H and W 32 or more -> class scores [N, classes]."""
        x = F.relu(self.norm(self.blocks(self.stem(images))), inplace=True)
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))
