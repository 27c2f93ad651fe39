"""Low-rank adapters on a frozen network: every adapter gets plain training's gradient, nothing frozen gets one."""

from __future__ import annotations

import copy

import pytest
import torch
from ogc_plan.adapters.pytorch import plan_of
from torch import Tensor, nn

from tests.modules.torch_training import bits, measured, planned, predicted, train


class Adapted(nn.Module):
    """A frozen layer plus a trained update of rank 2, with dropout before it."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.base = nn.Linear(16, 16).requires_grad_(False)
        self.down, self.up = nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)
        self.dropout = nn.Dropout(rate)

    def forward(self, x: Tensor) -> Tensor:
        update: Tensor = self.up(self.down(self.dropout(x)))
        return self.base(x) + 2.0 * update


class Network(nn.Module):
    """Residual blocks of a frozen norm, adapted layers and GELU; the loss is inside."""

    def __init__(self, rate: float, depth: int = 4) -> None:
        super().__init__()
        norm = lambda: nn.LayerNorm(16).requires_grad_(False)  # noqa: E731
        self.blocks = nn.ModuleList(
            nn.Sequential(norm(), Adapted(rate), nn.GELU(), Adapted(rate)) for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x.square().mean()


@pytest.fixture(scope="module", params=[0.0, 0.1], ids=["no dropout", "dropout"])
def plain(request: pytest.FixtureRequest) -> Network:
    torch.manual_seed(0)
    return Network(request.param)


@pytest.fixture(scope="module")
def args() -> tuple[Tensor, ...]:
    return (torch.randn(256, 16, generator=torch.Generator().manual_seed(1)),)


@pytest.fixture(scope="module")
def trained(plain: Network, args: tuple[Tensor, ...]) -> nn.Module:
    return planned(copy.deepcopy(plain), args, "60%")


def gradients(module: nn.Module, args: tuple[Tensor, ...], backwards: int) -> dict[str, bytes]:
    module = copy.deepcopy(module)
    torch.manual_seed(5)
    for _ in range(backwards):
        module(*args).backward()
    return {name: bits(value.grad) for name, value in module.named_parameters() if value.grad is not None}


def test_something_is_recomputed(trained: nn.Module) -> None:
    assert plan_of(trained).recomputed


@pytest.mark.parametrize("backwards", [1, 3])
def test_every_adapter_gradient_is_equal(
    plain: Network, trained: nn.Module, args: tuple[Tensor, ...], backwards: int
) -> None:
    assert gradients(trained, args, backwards) == gradients(plain, args, backwards)


def test_exactly_the_adapters_have_gradients(trained: nn.Module, args: tuple[Tensor, ...]) -> None:
    adapters = {name for name, _ in trained.named_parameters() if ".down." in name or ".up." in name}
    assert set(gradients(trained, args, 1)) == adapters


def test_twenty_steps_of_adamw_are_bitwise_equal(plain: Network, trained: nn.Module, args: tuple[Tensor, ...]) -> None:
    assert train(trained, args, steps=20) == train(plain, args, steps=20)


def test_the_measured_peaks_are_the_predicted_ones(trained: nn.Module, args: tuple[Tensor, ...]) -> None:
    assert measured(trained, args) == predicted(trained)


def test_the_budget_holds(trained: nn.Module, args: tuple[Tensor, ...]) -> None:
    assert measured(trained, args)[1] <= plan_of(trained).budget.nbytes
