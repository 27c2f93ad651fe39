"""T5-small (Raffel et al., JMLR 2020): 6 encoder and 6 decoder layers of width 512, 60,506,624 parameters.

RMS norms without centring, no biases, relative position biases shared by the layers of a stack, scores that are
not scaled; tokens of both stacks and the head share one embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.networks.llama import RMSNorm

EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class T5Config:
    """Sizes of a T5; the defaults are the small model. ``size`` is a head's; ``layers`` counts one stack's."""

    vocabulary: int = 32128
    layers: int = 6
    heads: int = 8
    size: int = 64
    width: int = 512
    hidden: int = 2048
    buckets: int = 32
    distance: int = 128
    dropout: float = 0.1


def bucket(offsets: Tensor, buckets: int, distance: int, *, both_ways: bool) -> Tensor:
    """Key position minus query position -> bucket: near offsets have one each, far ones share by logarithm."""
    found = torch.zeros_like(offsets)
    if both_ways:
        buckets //= 2
        found = found + (offsets > 0).long() * buckets
        offsets = offsets.abs()
    else:
        offsets = (-offsets).clamp(min=0)
    near = buckets // 2
    far = torch.log(offsets.clamp(min=1).float() / near) / log(distance / near) * (buckets - near)
    return found + torch.where(offsets < near, offsets, (near + far.long()).clamp(max=buckets - 1))


class Positions(nn.Module):
    """The bias that a stack's first layer owns and all of them add to their scores."""

    def __init__(self, config: T5Config, *, causal: bool) -> None:
        super().__init__()
        self.config, self.causal = config, causal
        self.table = nn.Embedding(config.buckets, config.heads)

    def forward(self, length: int, device: torch.device) -> Tensor:
        """[1, heads, length, length]; where ``causal``, -inf for what lies ahead."""
        places = torch.arange(length, device=device)
        offsets = places[None, :] - places[:, None]
        sizes = self.config.buckets, self.config.distance
        bias = self.table(bucket(offsets, *sizes, both_ways=not self.causal)).permute(2, 0, 1)[None]
        return bias.masked_fill(offsets > 0, -torch.inf) if self.causal else bias


class Attention(nn.Module):
    """Attention of ``x`` over ``source``, with a bias on its scores."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        inner = config.heads * config.size
        self.heads, self.rate = config.heads, config.dropout
        self.query = nn.Linear(config.width, inner, bias=False)
        self.key = nn.Linear(config.width, inner, bias=False)
        self.value = nn.Linear(config.width, inner, bias=False)
        self.proj = nn.Linear(inner, config.width, bias=False)

    def forward(self, x: Tensor, source: Tensor, bias: Tensor | None) -> Tensor:
        """[N, T, width] and [N, S, width] -> [N, T, width]."""
        query, key, value = (
            part(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part, y in ((self.query, x), (self.key, source), (self.value, source))
        )
        scores = query @ key.transpose(-1, -2)
        weights = (scores if bias is None else scores + bias).softmax(dim=-1)
        y = F.dropout(weights, self.rate, self.training) @ value
        return self.proj(y.transpose(1, 2).flatten(-2))


class Layer(nn.Module):
    """Pre-norm self-attention, in a decoder attention over the encoder, and MLP with ReLU."""

    def __init__(self, config: T5Config, *, decodes: bool) -> None:
        super().__init__()
        self.norm1, self.itself = RMSNorm(config.width, EPSILON), Attention(config)
        self.norm2 = RMSNorm(config.width, EPSILON) if decodes else None
        self.across = Attention(config) if decodes else None
        self.norm3 = RMSNorm(config.width, EPSILON)
        self.expand = nn.Linear(config.width, config.hidden, bias=False)
        self.contract = nn.Linear(config.hidden, config.width, bias=False)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, bias: Tensor, encoded: Tensor | None = None) -> Tensor:
        """[N, T, width] -> [N, T, width]; ``encoded`` is [N, S, width] in a decoder."""
        y = self.norm1(x)
        x = x + self.dropout(self.itself(y, y, bias))
        if self.norm2 is not None and self.across is not None and encoded is not None:
            x = x + self.dropout(self.across(self.norm2(x), encoded, None))
        y = self.contract(self.dropout(F.relu(self.expand(self.norm3(x)))))
        return x + self.dropout(y)


class Stack(nn.Module):
    """An encoder or a decoder over embedded tokens."""

    def __init__(self, config: T5Config, *, decodes: bool) -> None:
        super().__init__()
        self.positions = Positions(config, causal=decodes)
        self.layers = nn.ModuleList(Layer(config, decodes=decodes) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, EPSILON)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, encoded: Tensor | None = None) -> Tensor:
        """[N, T, width] -> [N, T, width]."""
        bias = self.positions(x.shape[1], x.device)
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x, bias, encoded)
        return self.dropout(self.norm(x))


class T5(nn.Module):
    """Encoder and decoder over one embedding, which is also the head."""

    def __init__(self, config: T5Config | None = None) -> None:
        super().__init__()
        config = config or T5Config()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.encoder = Stack(config, decodes=False)
        self.decoder = Stack(config, decodes=True)
        self.scale = config.width**-0.5

    def forward(self, ids: Tensor, decoded: Tensor) -> Tensor:
        """Token ids [N, S] and those to continue [N, T] (int64) -> logits [N, T, vocabulary]."""
        encoded = self.encoder(self.tokens(ids))
        x = self.decoder(self.tokens(decoded), encoded)
        return F.linear(x * self.scale, self.tokens.weight)
