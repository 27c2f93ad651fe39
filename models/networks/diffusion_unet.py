"""The U-Net of DDPM for CIFAR-10 (Ho et al., NeurIPS 2020, appendix B): 35,746,307 parameters.

Residual blocks with group norm, each told the time step; attention of one head at one extent; a skip from every
block on the way down to one on the way up.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BLOCKS = 2  # residual blocks of a level on the way down; one more on the way up


@dataclass(frozen=True, slots=True)
class DiffusionConfig:
    """Sizes; the defaults are those for CIFAR-10. The level at depth ``attended`` has attention."""

    channels: int = 128
    multiples: tuple[int, ...] = (1, 2, 2, 2)
    attended: int = 1
    groups: int = 32
    dropout: float = 0.1


class Residual(nn.Module):
    """Norm, SiLU, 3x3, shifted by the time step; norm, SiLU, dropout, 3x3; added to the input."""

    def __init__(self, in_channels: int, out_channels: int, told: int, config: DiffusionConfig) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(config.groups, in_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.shift = nn.Linear(told, out_channels)
        self.norm2 = nn.GroupNorm(config.groups, out_channels)
        self.dropout = nn.Dropout(config.dropout)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        same = in_channels == out_channels
        self.shortcut = nn.Identity() if same else nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        """[N, C, H, W] and [N, told] -> [N, out_channels, H, W]."""
        y = self.conv1(F.silu(self.norm1(x))) + self.shift(F.silu(told))[:, :, None, None]
        return self.shortcut(x) + self.conv2(self.dropout(F.silu(self.norm2(y))))


class Attention(nn.Module):
    """One head over all positions, added to the input."""

    def __init__(self, channels: int, config: DiffusionConfig) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(config.groups, channels)
        self.query = nn.Conv2d(channels, channels, 1)
        self.key = nn.Conv2d(channels, channels, 1)
        self.value = nn.Conv2d(channels, channels, 1)
        self.proj = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, C, H, W]."""
        batch, channels, height, width = x.shape
        y = self.norm(x)
        flat = (batch, channels, height * width)
        query, key, value = (part(y).reshape(flat) for part in (self.query, self.key, self.value))
        weights = (query.transpose(1, 2) @ key * channels**-0.5).softmax(dim=-1)
        mixed = (value @ weights.transpose(1, 2)).reshape(batch, channels, height, width)
        return x + self.proj(mixed)


class Level(nn.Module):
    """A residual block and, where the level has it, attention."""

    def __init__(self, in_channels: int, out_channels: int, told: int, config: DiffusionConfig, attends: bool) -> None:
        super().__init__()
        self.residual = Residual(in_channels, out_channels, told, config)
        self.attention = Attention(out_channels, config) if attends else nn.Identity()

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        """[N, C, H, W] and [N, told] -> [N, out_channels, H, W]."""
        return self.attention(self.residual(x, told))


class Shrink(nn.Module):
    """A 3x3 convolution of every second position, padded at the end."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, C, H / 2, W / 2]."""
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Grow(nn.Module):
    """Every pixel twice in each direction, and a 3x3 convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, C, 2 * H, 2 * W]."""
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class DiffusionUNet(nn.Module):
    """Time embedding, entry, levels down, middle, levels up, exit."""

    def __init__(self, config: DiffusionConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or DiffusionConfig()
        width, told = config.channels, 4 * config.channels
        self.time = nn.Sequential(nn.Linear(width, told), nn.SiLU(), nn.Linear(told, told))
        self.entry = nn.Conv2d(3, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        skips, last = [width], len(config.multiples) - 1
        channels = width
        for level, multiple in enumerate(config.multiples):
            for _ in range(BLOCKS):
                self.down.append(Level(channels, multiple * width, told, config, level == config.attended))
                skips.append(channels := multiple * width)
            if level < last:
                self.down.append(Shrink(channels))
                skips.append(channels)
        self.middle = nn.ModuleList(
            (Level(channels, channels, told, config, True), Residual(channels, channels, told, config))
        )
        for level in range(last, -1, -1):
            out_channels = config.multiples[level] * width
            for _ in range(BLOCKS + 1):
                joined = channels + skips.pop()
                self.up.append(Level(joined, out_channels, told, config, level == config.attended))
                channels = out_channels
            if level:
                self.up.append(Grow(channels))
        self.norm = nn.GroupNorm(config.groups, channels)
        self.exit = nn.Conv2d(channels, 3, 3, padding=1)

    def told(self, steps: Tensor) -> Tensor:
        """Time steps [N] (int64) -> [N, 4 * channels], from sines and cosines at channels / 2 frequencies."""
        half = self.config.channels // 2
        places = torch.arange(half, device=steps.device, dtype=torch.float32)
        angles = steps[:, None].float() * torch.exp(places * (-log(10000) / (half - 1)))
        return self.time(torch.cat([angles.sin(), angles.cos()], dim=1))

    def forward(self, images: Tensor, steps: Tensor) -> Tensor:
        """Noisy images [N, 3, H, W], H and W multiples of 8, and time steps [N] (int64) -> noise [N, 3, H, W]."""
        told = self.told(steps)
        x = self.entry(images)
        skips = [x]
        for part in self.down:
            x = part(x, told) if isinstance(part, Level) else part(x)
            skips.append(x)
        for part in self.middle:
            x = part(x, told)
        for part in self.up:
            x = part(torch.cat([x, skips.pop()], dim=1), told) if isinstance(part, Level) else part(x)
        return self.exit(F.silu(self.norm(x)))
