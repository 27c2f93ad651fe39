"""Residual networks as published (He et al., CVPR 2016, table 1; stride on the 3x3 convolution, "v1.5").

ResNet-18, -34, -50, -101 and -152: 11,689,512, 21,797,672, 25,557,032, 44,549,160 and 60,192,808 parameters.
ReLUs act in place, as in every widely used definition; the in-place output is what the backward keeps.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def projection(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """The shortcut: the identity, or a 1x1 convolution with norm where the shape changes."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    convolution = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out_channels))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, added to the shortcut."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = projection(in_channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, width, H / stride, W / stride]."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1 reduce, 3x3, 1x1 expand (factor 4), added to the shortcut."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = width * self.expansion
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = projection(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, 4 * width, H / stride, W / stride]."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """Stem, four stages of residual blocks, global average pooling, classifier."""

    def __init__(
        self,
        depths: tuple[int, int, int, int],
        classes: int = 1000,
        block: type[BasicBlock] | type[Bottleneck] = Bottleneck,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        channels = 64
        stages: list[nn.Module] = []
        for stage, depth in enumerate(depths):
            width = 64 * 2**stage
            blocks = []
            for number in range(depth):
                blocks.append(block(channels, width, stride=2 if stage and not number else 1))
                channels = width * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)

    def stem(self, images: Tensor) -> Tensor:
        """[N, 3, H, W] -> [N, 64, H / 4, W / 4]."""
        return self.maxpool(self.relu(self.bn1(self.conv1(images))))

    def classify(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> class scores [N, classes]."""
        return self.fc(torch.flatten(self.pool(x), 1))

    def forward(self, images: Tensor) -> Tensor:
        """[N, 3, H, W] -> class scores [N, classes]."""
        return self.classify(self.stages(self.stem(images)))
