"""GPT-2 124M (Radford et al., 2019): 12 layers, width 768, tied output head, 124,439,808 parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class GPT2Config:
    """Sizes of a GPT-2; the defaults are the 124M model. ``dropout`` acts where the original's three rates do."""

    vocabulary: int = 50257
    context: int = 1024
    layers: int = 12
    heads: int = 12
    width: int = 768
    dropout: float = 0.0


class CausalSelfAttention(nn.Module):
    """Multi-head attention over the past, q, k and v from one projection."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.proj = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """[N, T, width] -> [N, T, width]."""
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        rate = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Pre-norm attention and MLP, each added to the residual stream."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(config.width)
        self.attention = CausalSelfAttention(config)
        self.ln2 = nn.LayerNorm(config.width)
        self.expand = nn.Linear(config.width, 4 * config.width)
        self.activation = nn.GELU(approximate="tanh")
        self.contract = nn.Linear(4 * config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[N, T, width] -> [N, T, width]."""
        x = x + self.dropout(self.attention(self.ln1(x)))
        return x + self.dropout(self.contract(self.activation(self.expand(self.ln2(x)))))


class GPT2(nn.Module):
    """Token and position embeddings, blocks, final norm; the head shares the token embedding's weight."""

    def __init__(self, config: GPT2Config | None = None) -> None:
        super().__init__()
        config = config or GPT2Config()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def embed(self, ids: Tensor) -> Tensor:
        """Token ids [N, T] (int64) -> [N, T, width]."""
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.dropout(self.tokens(ids) + self.positions(places))

    def logits(self, x: Tensor) -> Tensor:
        """[N, T, width] -> [N, T, vocabulary]."""
        return self.head(self.norm(x))

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids [N, T] (int64) -> logits [N, T, vocabulary]."""
        return self.logits(self.blocks(self.embed(ids)))
