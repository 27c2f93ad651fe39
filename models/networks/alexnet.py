"""AlexNet of one GPU (Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014).

With the widths that trainers use since (64-192-384-256-256) and without local response normalisation:
61,100,840 parameters at 1000 classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

DROPOUT = 0.5
POOLED = 6


class AlexNet(nn.Module):
    """Five convolutions with ReLUs in place, three max poolings, three dense layers behind dropout."""

    def __init__(self, classes: int = 1000, hidden: int = 4096) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, 4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
        )
        self.pool = nn.AdaptiveAvgPool2d(POOLED)
        self.classifier = nn.Sequential(
            nn.Dropout(DROPOUT),
            nn.Linear(256 * POOLED * POOLED, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(DROPOUT),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """[N, 3, H, W], H and W 63 or more -> class scores [N, classes]."""
        return self.classifier(torch.flatten(self.pool(self.features(images)), 1))
