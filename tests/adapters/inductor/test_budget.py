"""A compiled step keeps a byte budget, to the bits of the compiled step without one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from ogc_plan.adapters.inductor import budget, planned_graphs
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
    """Three blocks and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(32) for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x).square().mean()


class Trained(NamedTuple):
    """What one compiled step made and held."""

    gradients: list[bytes]
    peak_nbytes: int
    options: dict[str, Any]


def trained(options: dict[str, Any]) -> Trained:
    """Two compiled steps, the second under the allocator's meter."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    network, x = Network(), torch.randn(512, 32)
    compiled = torch.compile(network, options=options, dynamic=False)

    def step() -> Tensor:
        torch.manual_seed(1)
        loss: Tensor = compiled(x)
        loss.backward()
        return loss.detach()

    step()
    network.zero_grad()
    peak = by_allocator(step, network, (x,))
    return Trained([bits(parameter.grad) for parameter in network.parameters()], peak.total_nbytes, options)


@pytest.fixture(scope="module")
def plain() -> Iterator[Trained]:
    yield trained({})
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def within(plain: Trained) -> Trained:
    """The same step within three quarters of the bytes of the plain one."""
    return trained(budget(plain.peak_nbytes * 3 // 4))


class TestBudget:
    def test_the_gradients_are_those_of_the_plain_compiled_step(self, plain: Trained, within: Trained) -> None:
        assert within.gradients == plain.gradients

    def test_the_allocator_sees_no_more_than_the_budget(self, plain: Trained, within: Trained) -> None:
        assert within.peak_nbytes <= plain.peak_nbytes * 3 // 4

    def test_the_predicted_peak_is_the_measured_one(self, within: Trained) -> None:
        assert abs(planned_graphs(within.options)[0].peak_nbytes - within.peak_nbytes) < 1_024

    def test_a_budget_that_cannot_be_kept_names_the_smallest_peak_found(self, plain: Trained) -> None:
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="smallest peak found"):
            trained(budget(plain.peak_nbytes // 8))
