"""BERT-base (Devlin et al., NAACL 2019), uncased, with its pooler: 109,482,240 parameters.

12 layers of width 768, post-norm; the embeddings add tokens, positions and segments. Heads are not part of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class BertConfig:
    """Sizes of a BERT; the defaults are the base model. ``dropout`` acts where the original's two rates do."""

    vocabulary: int = 30522
    context: int = 512
    layers: int = 12
    heads: int = 12
    width: int = 768
    hidden: int = 3072
    dropout: float = 0.1


class Layer(nn.Module):
    """Attention over all positions and MLP, each added to its input and then normalised."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.rate = config.dropout
        self.query = nn.Linear(config.width, config.width)
        self.key = nn.Linear(config.width, config.width)
        self.value = nn.Linear(config.width, config.width)
        self.proj = nn.Linear(config.width, config.width)
        self.norm1 = nn.LayerNorm(config.width, eps=1e-12)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, config.hidden), nn.GELU(), nn.Linear(config.hidden, config.width)
        )
        self.norm2 = nn.LayerNorm(config.width, eps=1e-12)
        self.dropout = nn.Dropout(config.dropout)

    def attend(self, x: Tensor) -> Tensor:
        """[N, T, width] -> [N, T, width]."""
        batch, length, width = x.shape
        query, key, value = (
            part(x).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(query, key, value, dropout_p=self.rate if self.training else 0.0)
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: Tensor) -> Tensor:
        """[N, T, width] -> [N, T, width]."""
        x = self.norm1(x + self.dropout(self.attend(x)))
        return self.norm2(x + self.dropout(self.mlp(x)))


class Bert(nn.Module):
    """Embeddings, layers, and a pooler: a dense layer with tanh over the first token."""

    def __init__(self, config: BertConfig | None = None) -> None:
        super().__init__()
        config = config or BertConfig()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.segments = nn.Embedding(2, config.width)
        self.norm = nn.LayerNorm(config.width, eps=1e-12)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.Sequential(*(Layer(config) for _ in range(config.layers)))
        self.pooler = nn.Linear(config.width, config.width)

    def forward(self, ids: Tensor, segments: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Token ids and segments [N, T] (int64; all 0 by default) -> states [N, T, width] and pooled [N, width]."""
        places = torch.arange(ids.shape[1], device=ids.device)
        told = self.segments(torch.zeros_like(ids) if segments is None else segments)
        x = self.layers(self.dropout(self.norm(self.tokens(ids) + self.positions(places) + told)))
        return x, torch.tanh(self.pooler(x[:, 0]))
