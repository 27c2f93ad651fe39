"""Losses, softmax and dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.cuda.steps.step import BF16, F16, Step, called, numbers, stacked

ROWS = (32, 64)


def classes() -> tuple[Tensor, ...]:
    return (numbers(64, 32),)


class Scored(nn.Module):
    """Two layers, and a loss of their scores."""

    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.layers, self.call = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), call

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        return self.call(self.layers(x), *rest)


def loss(call: Callable[..., Tensor], rest: Callable[[], tuple[Tensor, ...]] = classes, **options: Any) -> Step:
    return Step(lambda: Scored(call), lambda: (torch.randn(ROWS, device="cuda"), *rest()), **options)


def alike() -> tuple[Tensor, ...]:
    return (torch.rand(ROWS, device="cuda"),)


STEPS: dict[str, Step] = {
    "dropout": stacked(lambda: nn.Dropout(0.2), *ROWS),
    "dropout-autocast": stacked(lambda: nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.2)), *ROWS, contexts=(BF16,)),
    "dropout2d": stacked(lambda: nn.Dropout2d(0.2), 4, 16, 8, 8),
    "noise": called(lambda x: x + torch.randn_like(x), *ROWS),
    "bernoulli": called(lambda x: x * torch.bernoulli(x.sigmoid().detach()), *ROWS),
    "multinomial": called(lambda x: x.gather(1, torch.multinomial(x.abs().detach() + 1, 64, True)), *ROWS),
    "rrelu": stacked(lambda: nn.RReLU(), *ROWS),
    "permutation": called(lambda x: x[torch.randperm(32, device=x.device)], *ROWS),
    "softmax": called(lambda x: x.softmax(1), *ROWS),
    "softmax-autocast": called(lambda x: x.softmax(1), *ROWS, contexts=(F16,)),
    "log-softmax": called(lambda x: x.log_softmax(1), *ROWS),
    "cross-entropy": loss(F.cross_entropy),
    "cross-entropy-autocast": loss(F.cross_entropy, contexts=(BF16,)),
    "cross-entropy-smooth": loss(lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1)),
    "cross-entropy-probabilities": loss(F.cross_entropy, alike),
    "bce-logits": loss(F.binary_cross_entropy_with_logits, alike),
    "kl": loss(lambda x, y: F.kl_div(x.log_softmax(1), y, reduction="batchmean"), alike),
}
