"""What a module does when it is called happens as in eager training: calls of its own, prints, parametrizations."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import within_budget
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from tests.modules.torch_training import alternating

X = (torch.randn(6, 4),)


class Net(nn.Linear):
    """A layer, and a scalar out: [6, 4] -> []."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).tanh().square().sum()


class Around(Net):
    """Does something before and after it is called as a module."""

    def __call__(self, x: Tensor) -> Any:
        return super().__call__(x * 2) * 3


class Past(Net):
    """Calls its forward itself, without hooks."""

    def __call__(self, x: Tensor) -> Any:
        return self.forward(x.sin()) * 3


class Printing(Net):
    """Says what it is given, and takes a branch for which it is traced twice."""

    def forward(self, x: Tensor) -> Tensor:
        print("rows:", len(x))
        return super().forward(x if (x > 0).any() else -x)


def bound(module: nn.Module) -> Any:
    return within_budget(module, budget="min", device="cpu", strategy="greedy")


@pytest.mark.values
@pytest.mark.parametrize("kind", [Around, Past])
def test_a_class_that_is_called_in_its_own_way_trains_to_the_bits_of_eager(kind: Callable[[], nn.Module]) -> None:
    assert alternating(bound(kind()), X * 3) == alternating(kind(), X * 3)


def test_tracing_leaves_the_call_of_the_class_as_it_was() -> None:
    before = Around.__call__
    bound(Around())(*X)
    assert Around.__call__ is before


def test_a_forward_that_is_traced_prints_once(capsys: pytest.CaptureFixture[str]) -> None:
    bound(Printing())(*X)
    assert capsys.readouterr().out == "rows: 6\n"


def test_a_planned_step_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    module = bound(Printing())
    module(*X)
    capsys.readouterr()
    module(*X)
    assert not capsys.readouterr().out


class Squared(nn.Module):
    """A weight that is a square."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight * weight


def parametrized(module: nn.Module) -> nn.Module:
    return parametrize.register_parametrization(module, "weight", Squared())


Changes = list[Callable[[Any], object]]
SCRIPTS: dict[str, Changes] = {
    "registered": [parametrized],
    "registered twice": [parametrized, parametrized],
    "registered and removed": [parametrized, lambda net: parametrize.remove_parametrizations(net, "weight")],
    "a weight norm": [parametrizations.weight_norm],
    "two": [parametrizations.weight_norm, lambda net: parametrize.register_parametrization(net, "bias", Squared())],
}


def scripted(net: Any, changes: Changes) -> list[bytes]:
    made = alternating(net, X)
    for change in changes:
        change(net)
        made += alternating(net, X)
        made += alternating(copy.deepcopy(net), X)
    return made


@pytest.mark.values
@pytest.mark.filterwarnings("ignore:planned .* again")
class TestParametrized:
    @pytest.mark.parametrize("script", SCRIPTS)
    def test_on_a_bound_module_it_trains_to_the_bits_of_eager(self, script: str) -> None:
        assert scripted(bound(Net()), SCRIPTS[script]) == scripted(Net(), SCRIPTS[script])

    def test_removed_from_a_bound_module_it_trains_to_the_bits_of_eager(self) -> None:
        removed: Changes = [lambda net: parametrize.remove_parametrizations(net, "weight")]
        assert scripted(bound(parametrized(Net())), removed) == scripted(parametrized(Net()), removed)
