"""ConvNeXt-T (Liu et al., "A ConvNet for the 2020s", CVPR 2022): 28,589,128 parameters at 1000 classes.

Blocks normalise and expand with channels last, as the published code does; branches are dropped at random per
image while training (stochastic depth), at rates that rise with the depth to `DROPPED`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DROPPED = 0.1
EPSILON = 1e-6
INITIAL_SCALE = 1e-6


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of [N, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, C, H, W]."""
        y = F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return y.permute(0, 3, 1, 2)


class DropBranch(nn.Module):
    """A branch is zero for some images and scaled up for the rest, while training."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, C, H, W]."""
        if not self.training or self.rate == 0.0:
            return x
        kept = torch.empty(x.shape[0], 1, 1, 1, dtype=x.dtype, device=x.device).bernoulli_(1 - self.rate)
        return x * kept.div_(1 - self.rate)


class Block(nn.Module):
    """Depthwise 7x7, norm, expand fourfold, GELU, contract, scaled by channel, added to the input."""

    def __init__(self, width: int, rate: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), INITIAL_SCALE))
        self.drop = DropBranch(rate)

    def forward(self, x: Tensor) -> Tensor:
        """[N, width, H, W] -> [N, width, H, W]."""
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        y = self.scale * self.contract(F.gelu(self.expand(y)))
        return x + self.drop(y.permute(0, 3, 1, 2))


class ConvNeXt(nn.Module):
    """Patches of 4 x 4, four stages with a halving between them, global average pooling, norm, classifier."""

    def __init__(
        self,
        depths: tuple[int, ...] = (3, 3, 9, 3),
        widths: tuple[int, ...] = (96, 192, 384, 768),
        classes: int = 1000,
        dropped: float = DROPPED,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0], eps=EPSILON)]
        rates = torch.linspace(0, dropped, sum(depths), device="cpu").tolist()
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            if stage:
                before = widths[stage - 1]
                layers += [ChannelNorm(before, eps=EPSILON), nn.Conv2d(before, width, 2, 2)]
            layers += [Block(width, rates.pop(0)) for _ in range(depth)]
        self.layers = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(widths[-1], eps=EPSILON)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        """[N, 3, H, W], H and W multiples of 32 -> class scores [N, classes]."""
        return self.head(self.norm(self.layers(images).mean((-2, -1))))
