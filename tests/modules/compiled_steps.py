"""Compiled training steps of a small network with dropout, their gradients and their peaks."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.meters.step_meters import by_allocator
from tests.modules.torch_training import bits


class Block(nn.Module):
    """The feed-forward half of a GPT's layer, with dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.expand = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.dropout(self.contract(F.gelu(self.expand(self.norm(x)))), 0.2, self.training)


class Network(nn.Module):
    """Two blocks and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(32) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x).float().square().mean()


class Trained(NamedTuple):
    """What one compiled step made and held."""

    gradients: list[bytes]
    peak_nbytes: int
    options: dict[str, Any]


def trained(
    options: dict[str, Any],
    *,
    inside: AbstractContextManager[Any] | None = None,
    accumulates: bool = False,
) -> Trained:
    """Two compiled steps, the second under the allocator's meter; ``inside`` is a context of the forward."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    module, x = Network(), torch.randn(512, 32)
    compiled = torch.compile(module, options=options, dynamic=False)

    def step() -> Tensor:
        torch.manual_seed(1)
        with inside or contextlib.nullcontext():
            loss: Tensor = compiled(x)
        loss.backward()
        return loss.detach()

    step()
    if not accumulates:
        module.zero_grad()
    peak = by_allocator(step, module, (x,))
    return Trained([bits(parameter.grad) for parameter in module.parameters()], peak.total_nbytes, options)
