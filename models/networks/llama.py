"""A decoder in the style of Llama 3 (Grattafiori et al., 2024), at the shape of Llama-3.2-1B: 1,235,814,400 parameters.

RMS norms, rotary positions, grouped queries, gated SiLU, no biases; the head shares the token embedding's weight.
Rotary frequencies are the plain ones, without the scaling to long contexts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Sizes of a decoder; the defaults are those of the 1B model. ``groups`` is the number of key-value heads."""

    vocabulary: int = 128256
    layers: int = 16
    heads: int = 32
    groups: int = 8
    width: int = 2048
    hidden: int = 8192
    base: float = 500000.0


class RMSNorm(nn.Module):
    """x / rms(x), scaled by channel, composed of the ops that published decoders compose it of."""

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., width]."""
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon))


def rotations(length: int, size: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines [length, size] of every position at every frequency, both halves alike."""
    rates = base ** (-torch.arange(0, size, 2, device=device, dtype=torch.float32) / size)
    angles = torch.arange(length, device=device, dtype=torch.float32)[:, None] * rates
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """[N, heads, T, size] -> the same, each pair of channels (i, i + size / 2) rotated by its angle."""
    left, right = x.chunk(2, dim=-1)
    return x * cosines + torch.cat([-right, left], dim=-1) * sines


class Attention(nn.Module):
    """Causal attention in which several queries share one key and value."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads, self.groups = config.heads, config.groups
        self.size = config.width // config.heads
        self.query = nn.Linear(config.width, config.heads * self.size, bias=False)
        self.key = nn.Linear(config.width, config.groups * self.size, bias=False)
        self.value = nn.Linear(config.width, config.groups * self.size, bias=False)
        self.proj = nn.Linear(config.heads * self.size, config.width, bias=False)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """[N, T, width] -> [N, T, width]."""
        batch, length, _ = x.shape
        query = self.query(x).view(batch, length, self.heads, self.size).transpose(1, 2)
        key = self.key(x).view(batch, length, self.groups, self.size).transpose(1, 2)
        value = self.value(x).view(batch, length, self.groups, self.size).transpose(1, 2)
        shared = self.heads // self.groups
        key = rotated(key, cosines, sines).repeat_interleave(shared, dim=1)
        value = value.repeat_interleave(shared, dim=1)
        y = F.scaled_dot_product_attention(rotated(query, cosines, sines), key, value, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, length, -1))


class Block(nn.Module):
    """Pre-norm attention and gated MLP, each added to the residual stream."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.norm1 = RMSNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = RMSNorm(config.width)
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.expand = nn.Linear(config.width, config.hidden, bias=False)
        self.contract = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """[N, T, width] -> [N, T, width]."""
        x = x + self.attention(self.norm1(x), cosines, sines)
        y = self.norm2(x)
        return x + self.contract(F.silu(self.gate(y)) * self.expand(y))


class Llama(nn.Module):
    """Token embedding, blocks, final norm, tied head."""

    def __init__(self, config: LlamaConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or LlamaConfig()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids [N, T] (int64) -> logits [N, T, vocabulary]."""
        size = self.config.width // self.config.heads
        turns = rotations(ids.shape[1], size, self.config.base, ids.device)
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, *turns)
        return self.head(self.norm(x))
