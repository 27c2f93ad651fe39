"""Convolutions, pooling and resizing."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from tests.cuda.steps.step import BF16, F16, Step, called, stacked

IMAGE, VOLUME, SIGNAL = (4, 16, 8, 8), (2, 8, 4, 8, 8), (4, 16, 32)
STEPS: dict[str, Step] = {
    "conv2d-no-bias-half": stacked(lambda: nn.Conv2d(16, 16, 3, padding=1, bias=False), *IMAGE, contexts=(F16,)),
    "conv2d-channels_last": stacked(
        lambda: nn.Conv2d(16, 16, 3, padding=1), *IMAGE, channels_last=True, contexts=(BF16,)
    ),
    "conv2d-dilated": stacked(lambda: nn.Conv2d(16, 16, 3, padding=2, dilation=2), *IMAGE),
    "conv3d": stacked(lambda: nn.Conv3d(8, 8, 3, padding=1), *VOLUME),
    "grouped": stacked(lambda: nn.Conv2d(16, 16, 3, padding=1, groups=4), *IMAGE),
    "depthwise": stacked(lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16), *IMAGE),
    "depthwise-half": stacked(lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16), *IMAGE, contexts=(F16,)),
    "depthwise-channels_last": stacked(
        lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16), *IMAGE, contexts=(F16,), channels_last=True
    ),
    "transposed": stacked(lambda: nn.ConvTranspose2d(16, 16, 3, padding=1), *IMAGE),
    "transposed-half": stacked(lambda: nn.ConvTranspose2d(16, 16, 3, padding=1), *IMAGE, contexts=(F16,)),
    "max-pool": stacked(lambda: nn.MaxPool2d(3, stride=1, padding=1), *IMAGE),
    "max-pool-channels_last": stacked(lambda: nn.MaxPool2d(3, stride=1, padding=1), *IMAGE, channels_last=True),
    "max-pool-indices": called(lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), 2, 4, 8, 8),
    "adaptive-average": called(lambda x: x * F.adaptive_avg_pool2d(x, 1), 2, 4, 8, 8),
    "adaptive-max": called(lambda x: F.interpolate(F.adaptive_max_pool2d(x, 4), 8), 2, 4, 8, 8),
    "nearest": called(lambda x: F.interpolate(x, scale_factor=2)[..., ::2, ::2].contiguous(), 2, 4, 8, 8),
    "bilinear": called(lambda x: F.avg_pool2d(F.interpolate(x, scale_factor=2, mode="bilinear"), 2), 2, 4, 8, 8),
    "trilinear": called(lambda x: F.avg_pool3d(F.interpolate(x, scale_factor=2, mode="trilinear"), 2), 2, 4, 4, 8, 8),
    "unfold": called(lambda x: F.fold(F.unfold(x, 3, padding=1), (8, 8), 3, padding=1), 2, 4, 8, 8),
    "grid-sample": called(lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), align_corners=False), 2, 4, 8, 8),
}
