"""Compiled training steps of a small network with dropout, their gradients and their peaks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
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


class Gate(nn.Module):
    """Cheap functions of products, whose results a kernel of bfloat16 need not round."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.expand, self.contract = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.contract(F.silu(self.expand(self.norm(x))) * 1.7)
        return (inner * torch.sigmoid(inner) + x).float().square().mean()


class Normalizer(nn.Module):
    """It centers what it is given by a buffer, which it then moves."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
        self.register_buffer("center", torch.ones(32))

    def forward(self, x: Tensor) -> Tensor:
        center = self.center.clone()
        y = torch.sin(self.layers[0](x) * center)
        z = torch.cos(y * center) * y
        self.center.mul_(0.9).add_(z.detach().mean(0) * 0.1)
        return torch.tanh(self.layers[1](z) * center).square().mean()


class Overwriter(nn.Module):
    """It halves its argument after it has read it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        z = self.layers[1](torch.tanh(self.layers[0](x.sin())) * x.cos()).exp()
        x.mul_(0.5)
        return z.square().mean()


class Buckets(nn.Module):
    """Attention with a bias by the logarithm of a distance, which Inductor does not vectorize."""

    def __init__(self) -> None:
        super().__init__()
        self.parts, self.bias = nn.ModuleList(nn.Linear(32, 96) for _ in range(2)), nn.Embedding(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x, places = x.view(8, 64, 32), torch.arange(64)
        offsets = places[None, :] - places[:, None]
        far = offsets.abs()
        logs = torch.log(far.clamp(min=1).float() / 4) / 2.8 * 4
        bucket = (offsets > 0).long() * 8 + torch.where(far < 4, far, (4 + logs.long()).clamp(max=7))
        bias = self.bias(bucket).permute(2, 0, 1)[None]
        for part in self.parts:
            queries, keys, values = part(x).unflatten(-1, (12, -1)).transpose(1, 2).chunk(3, dim=1)
            weights = (queries @ keys.transpose(-1, -2) + bias).softmax(dim=-1)
            x = x + (F.dropout(weights, 0.1) @ values).transpose(1, 2).flatten(-2)
        return x.square().mean()


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
    network: Callable[[], nn.Module] = Network,
) -> Trained:
    """Two compiled steps, the second under the allocator's meter; ``inside`` is a context of the forward."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    module, x = network(), torch.randn(512, 32)
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
