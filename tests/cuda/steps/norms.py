"""Norms, with statistics and without, in mixed precision and in channels_last."""

from __future__ import annotations

import torch
from torch import nn

from tests.cuda.steps.step import BF16, F16, Step, stacked

IMAGE = (4, 16, 8, 8)
STEPS: dict[str, Step] = {
    "layer": stacked(lambda: nn.LayerNorm(64), 32, 64),
    "layer-autocast": stacked(lambda: nn.LayerNorm(64), 32, 64, contexts=(BF16,)),
    "layer-half": stacked(lambda: nn.LayerNorm(64).half(), 32, 64, dtype=torch.float16),
    "rms": stacked(lambda: nn.RMSNorm(64), 32, 64),
    "rms-bfloat16": stacked(lambda: nn.RMSNorm(64).bfloat16(), 32, 64, dtype=torch.bfloat16),
    "group": stacked(lambda: nn.GroupNorm(4, 16), *IMAGE),
    "group-autocast": stacked(lambda: nn.GroupNorm(4, 16), *IMAGE, contexts=(F16,)),
    "group-channels_last": stacked(lambda: nn.GroupNorm(4, 16), *IMAGE, channels_last=True),
    "instance-statistics": stacked(lambda: nn.InstanceNorm2d(16, track_running_stats=True), *IMAGE),
    "instance-channels_last": stacked(lambda: nn.InstanceNorm2d(16, affine=True), *IMAGE, channels_last=True),
    "batch1d": stacked(lambda: nn.BatchNorm1d(64), 32, 64),
    "batch2d-half-input": stacked(lambda: nn.BatchNorm2d(16), *IMAGE, dtype=torch.float16),
    "batch2d-half": stacked(lambda: nn.BatchNorm2d(16).half(), *IMAGE, dtype=torch.float16),
    "batch2d-autocast-channels_last": stacked(
        lambda: nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)),
        *IMAGE,
        contexts=(F16,),
        channels_last=True,
    ),
    "batch2d-eval": stacked(lambda: nn.BatchNorm2d(16).eval(), *IMAGE),
    "batch3d-channels_last": stacked(
        lambda: nn.BatchNorm3d(16).to(memory_format=torch.channels_last_3d), 2, 16, 4, 8, 8
    ),
}
