"""Residual networks of 6 n + 2 layers for images of 32 x 32: three stages of n blocks, widths 16-32-64.

The post-activation form of He et al., CVPR 2016, section 4.2, whose shortcuts subsample and pad with zeros
where the shape changes (option A): ResNet-110 has 1,727,962 parameters (1,730,714 with the projections of
option B). The pre-activation form ("v2", He et al., ECCV 2016), with basic blocks and a projection in the
first block of every stage, is what TensorFlow's official CIFAR model and the deep networks of the
gradient-checkpointing package's benchmark are: n is its number of blocks a stage.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS = (16, 32, 64)


def blocks_a_stage(layers: int) -> int:
    """The n of 6 n + 2 layers. Raises ValueError for another number of layers."""
    if layers < 8 or layers % 6 != 2:
        raise ValueError(f"a CIFAR ResNet has 6 n + 2 layers, n at least 1, and so not {layers}")
    return (layers - 2) // 6


class PostActivation(nn.Module):
    """Two 3x3 convolutions added to the input, subsampled and padded with channels of zeros where need be."""

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.added = width - in_channels
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def shortcut(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, width, H / stride, W / stride], without parameters."""
        if self.stride == 1 and not self.added:
            return x
        before = self.added // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.added - before))

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, width, H / stride, W / stride]."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + self.shortcut(x))


class PreActivation(nn.Module):
    """Norm, ReLU, 3x3 twice, added to the input; ``projects`` a first block's shortcut from what is activated."""

    def __init__(self, in_channels: int, width: int, stride: int, projects: bool) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.projection = nn.Conv2d(in_channels, width, 1, stride, bias=False) if projects else None
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, width, H / stride, W / stride]."""
        active = self.relu(self.bn1(x))
        shortcut = x if self.projection is None else self.projection(active)
        y = self.conv1(active)
        return self.conv2(self.relu(self.bn2(y))) + shortcut


def staged(layers: int, block: Callable[[int, int, int, bool], nn.Module]) -> nn.Sequential:
    """Three stages of blocks: ``block`` takes channels, width, stride, and whether it is the first of its stage."""
    blocks: list[nn.Module] = []
    channels = WIDTHS[0]
    for stage, width in enumerate(WIDTHS):
        for number in range(blocks_a_stage(layers)):
            blocks.append(block(channels, width, 2 if stage and not number else 1, not number))
            channels = width
    return nn.Sequential(*blocks)


class CifarResNet(nn.Module):
    """Post-activation: convolution, norm, ReLU, three stages, global average pooling, classifier."""

    def __init__(self, layers: int, classes: int = 10) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(WIDTHS[0])
        self.relu = nn.ReLU(inplace=True)
        self.blocks = staged(layers, lambda channels, width, stride, _: PostActivation(channels, width, stride))
        self.fc = nn.Linear(WIDTHS[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        """[N, 3, H, W] -> class scores [N, classes]."""
        x = self.blocks(self.relu(self.bn(self.conv(images))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class CifarResNetV2(nn.Module):
    """Pre-activation: convolution, three stages, norm, ReLU, global average pooling, classifier."""

    def __init__(self, layers: int, classes: int = 10) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False)
        self.blocks = staged(layers, PreActivation)
        self.bn = nn.BatchNorm2d(WIDTHS[-1])
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(WIDTHS[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        """[N, 3, H, W] -> class scores [N, classes]."""
        x = self.relu(self.bn(self.blocks(self.conv(images))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))
