"""Recurrent layers without cuDNN; with it they cannot be traced (test_recurrent.py)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from tests.cuda.steps.step import F16, Context, Loss, Step


class OverSequence(nn.Module):
    """A cell over a sequence."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Any:
        state = None
        for part in x:
            state = self.cell(part, state)
        return state


def without_cudnn() -> AbstractContextManager[object]:
    return torch.backends.cudnn.flags(enabled=False)


def of(build: Callable[[], nn.Module], *contexts: Context) -> Step:
    return Step(
        lambda: Loss(build()),
        lambda: (torch.randn(6, 4, 16, device="cuda", requires_grad=True),),
        (without_cudnn, *contexts),
    )


STEPS: dict[str, Step] = {
    "lstm": of(lambda: nn.LSTM(16, 32, 2, dropout=0.1)),
    "lstm-both-ways": of(lambda: nn.LSTM(16, 32, bidirectional=True, batch_first=True)),
    "lstm-projected": of(lambda: nn.LSTM(16, 32, proj_size=8)),
    "lstm-autocast": of(lambda: nn.LSTM(16, 32), F16),
    "gru": of(lambda: nn.GRU(16, 32, 2, dropout=0.1)),
    "rnn": of(lambda: nn.RNN(16, 32, 2)),
    "cell": of(lambda: OverSequence(nn.LSTMCell(16, 32))),
}
