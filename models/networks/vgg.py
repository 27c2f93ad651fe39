"""VGG-11, -13, -16 and -19 (Simonyan and Zisserman, ICLR 2015, configurations A, B, D and E), without batch norm.

132,863,336, 133,047,848, 138,357,544 and 143,667,240 parameters at 1000 classes; ReLUs act in place.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.descriptions import DROPOUT, VGG_WIDTHS

POOLED = 7


class VGG(nn.Module):
    """Five stages of 3x3 convolutions, each closed by a max pooling, and three dense layers with dropout."""

    def __init__(
        self,
        depths: tuple[int, int, int, int, int],
        classes: int = 1000,
        *,
        widths: tuple[int, ...] = VGG_WIDTHS,
        hidden: int = 4096,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for depth, width in zip(depths, widths, strict=True):
            for _ in range(depth):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(POOLED)
        self.classifier = nn.Sequential(
            nn.Linear(channels * POOLED * POOLED, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(DROPOUT),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(DROPOUT),
            nn.Linear(hidden, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """[N, 3, H, W], H and W 32 or more -> class scores [N, classes]."""
        return self.classifier(torch.flatten(self.pool(self.features(images)), 1))
