"""A text classifier over a bidirectional LSTM of two layers: no published network, the common shape of one.

Vocabulary 20,000, embeddings of 128, 256 units a direction, two classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class LSTMConfig:
    """Sizes of a classifier; ``units`` are those of one direction; ``dropout`` acts between layers and at the end."""

    vocabulary: int = 20000
    width: int = 128
    units: int = 256
    layers: int = 2
    classes: int = 2
    dropout: float = 0.5


class LSTMClassifier(nn.Module):
    """Embedding, bidirectional LSTM, the last states of both directions, dropout, classifier."""

    def __init__(self, config: LSTMConfig | None = None) -> None:
        super().__init__()
        config = config or LSTMConfig()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.lstm = nn.LSTM(
            config.width,
            config.units,
            config.layers,
            batch_first=True,
            bidirectional=True,
            dropout=config.dropout if config.layers > 1 else 0.0,
        )
        self.dropout = nn.Dropout(config.dropout)
        self.fc = nn.Linear(2 * config.units, config.classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids [N, T] (int64) -> class scores [N, classes]."""
        _, (states, _) = self.lstm(self.tokens(ids))
        return self.fc(self.dropout(torch.cat([states[-2], states[-1]], dim=1)))
