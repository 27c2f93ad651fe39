"""Compiled training steps of a small network with dropout, their gradients and their peaks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
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
    """Blocks and a loss; ``breaks`` breaks the graph after the first block."""

    def __init__(self, blocks: int = 3, *, breaks: bool = False) -> None:
        super().__init__()
        self.blocks, self.breaks = nn.ModuleList(Block(32) for _ in range(blocks)), breaks

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            if number == 1 and self.breaks:
                torch._dynamo.graph_break()
            x = block(x)
        return x.float().square().mean()


class Trained(NamedTuple):
    """What one compiled step made and held."""

    gradients: list[bytes]
    peak_nbytes: int
    options: dict[str, Any]


def trained(
    options: dict[str, Any],
    network: nn.Module | None = None,
    *,
    inside: AbstractContextManager[Any] | None = None,
    accumulates: bool = False,
) -> Trained:
    """Two compiled steps, the second under the allocator's meter; ``inside`` is a context of the forward."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    module, x = network or Network(), torch.randn(512, 32)
    _draw(module.parameters())
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


@torch.no_grad()
def _draw(parameters: Iterable[Tensor]) -> None:
    """The same values for networks that were made at different times."""
    for parameter in parameters:
        parameter.uniform_(-0.2, 0.2)
