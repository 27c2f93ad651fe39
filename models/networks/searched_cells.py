"""CIFAR-10 networks of cells found by search, as the DARTS paper compares them (Liu et al., ICLR 2019, table 1).

20 cells, 36 channels at first, reductions at one and two thirds, without auxiliary classifier and dropped paths.
Cells: DARTS of the second order (its figures 4 and 5), 3,349,342 parameters; NASNet-A (Zoph et al., CVPR 2018,
figure 4), 3,830,950; AmoebaNet-A (Real et al., AAAI 2019, figure 5), 3,145,078: what its code gives for them, where
its table quotes 3.3 and 3.2 million of their own papers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.descriptions import Genotype, Wiring

CELLS = 20
CHANNELS = 36
STEM_MULTIPLIER = 3

# Operations: of a number of channels and a stride; their ReLUs are not in place, for their inputs are shared


def pointwise(in_channels: int, out_channels: int) -> nn.Sequential:
    """ReLU, 1x1 convolution, norm."""
    return nn.Sequential(nn.ReLU(), nn.Conv2d(in_channels, out_channels, 1, bias=False), nn.BatchNorm2d(out_channels))


class Halved(nn.Module):
    """Half the extent, half of the channels from even positions and half from odd ones, norm."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.even = nn.Conv2d(in_channels, out_channels // 2, 1, 2, bias=False)
        self.odd = nn.Conv2d(in_channels, out_channels // 2, 1, 2, bias=False)
        self.norm = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, out_channels, H / 2, W / 2], H and W even."""
        x = self.relu(x)
        return self.norm(torch.cat([self.even(x), self.odd(x[:, :, 1:, 1:])], dim=1))


def depthwise(channels: int, kernel: int, stride: int, dilation: int = 1) -> list[nn.Module]:
    """ReLU, depthwise and pointwise convolution, norm."""
    padding = dilation * (kernel // 2)
    return [
        nn.ReLU(),
        nn.Conv2d(channels, channels, kernel, stride, padding, dilation, groups=channels, bias=False),
        nn.Conv2d(channels, channels, 1, bias=False),
        nn.BatchNorm2d(channels),
    ]


def separable(channels: int, stride: int, kernel: int) -> nn.Module:
    """Twice depthwise and pointwise, the stride in the first."""
    return nn.Sequential(*depthwise(channels, kernel, stride), *depthwise(channels, kernel, 1))


def factorised(channels: int, stride: int) -> nn.Module:
    """ReLU, 1x7 and 7x1 convolution, each with its direction's stride, norm."""
    return nn.Sequential(
        nn.ReLU(),
        nn.Conv2d(channels, channels, (1, 7), (1, stride), (0, 3), bias=False),
        nn.Conv2d(channels, channels, (7, 1), (stride, 1), (3, 0), bias=False),
        nn.BatchNorm2d(channels),
    )


OPERATIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "identity": lambda channels, stride: nn.Identity() if stride == 1 else Halved(channels, channels),
    "average": lambda channels, stride: nn.AvgPool2d(3, stride, padding=1, count_include_pad=False),
    "largest": lambda channels, stride: nn.MaxPool2d(3, stride, padding=1),
    "separable 3": lambda channels, stride: separable(channels, stride, 3),
    "separable 5": lambda channels, stride: separable(channels, stride, 5),
    "separable 7": lambda channels, stride: separable(channels, stride, 7),
    "dilated 3": lambda channels, stride: nn.Sequential(*depthwise(channels, 3, stride, dilation=2)),
    "factorised 7": factorised,
}


class Cell(nn.Module):
    """One cell over the two outputs before it; only what reads them directly has the stride."""

    def __init__(
        self, wiring: Wiring, earlier: int, latest: int, channels: int, *, reduces: bool, follows_reduction: bool
    ) -> None:
        super().__init__()
        self.wiring = wiring
        self.earlier = Halved(earlier, channels) if follows_reduction else pointwise(earlier, channels)
        self.latest = pointwise(latest, channels)
        self.operations = nn.ModuleList(
            OPERATIONS[name](channels, 2 if reduces and source < 2 else 1) for name, source in wiring.pairs
        )
        self.channels = len(wiring.joined) * channels

    def forward(self, earlier: Tensor, latest: Tensor) -> Tensor:
        """Outputs of the cell before the latest and of the latest -> [N, channels, H, W], halved by a reduction."""
        states = [self.earlier(earlier), self.latest(latest)]
        results = zip(self.operations, self.wiring.pairs, strict=True)
        for (left, (_, first)), (right, (_, second)) in zip(results, results, strict=True):
            states.append(left(states[first]) + right(states[second]))
        return torch.cat([states[index] for index in self.wiring.joined], dim=1)


class SearchedNetwork(nn.Module):
    """Stem, cells, global average pooling, classifier."""

    def __init__(self, genotype: Genotype, cells: int = CELLS, channels: int = CHANNELS, classes: int = 10) -> None:
        super().__init__()
        width = STEM_MULTIPLIER * channels
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))
        earlier = latest = width
        self.cells = nn.ModuleList()
        follows_reduction = False
        for number in range(cells):
            reduces = number in (cells // 3, 2 * cells // 3)
            channels *= 2 if reduces else 1
            wiring = genotype.reduction if reduces else genotype.normal
            cell = Cell(wiring, earlier, latest, channels, reduces=reduces, follows_reduction=follows_reduction)
            self.cells.append(cell)
            earlier, latest, follows_reduction = latest, cell.channels, reduces
        self.fc = nn.Linear(latest, classes)

    def forward(self, images: Tensor) -> Tensor:
        """[N, 3, H, W], H and W multiples of 4 -> class scores [N, classes]."""
        earlier = latest = self.stem(images)
        for cell in self.cells:
            earlier, latest = latest, cell(earlier, latest)
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(latest, 1), 1))
