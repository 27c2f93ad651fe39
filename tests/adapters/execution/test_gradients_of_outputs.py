"""Gradients of outputs are those of eager, or an error where they would lack what flows through the module."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import UnsupportedModuleError
from torch import Tensor, nn

from tests.modules.torch_training import bits, planned

X = torch.randn(8, 6)


class Features(nn.Module):
    """A loss and the features that it is made of, as class activation maps want them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Any:
        features = self.first(x).tanh()
        return self.second(features).square().sum(), features


class Retaining(Features):
    """Asks for the gradient itself."""

    def forward(self, x: Tensor) -> Any:
        features = self.first(x).tanh()
        features.retain_grad()
        return self.second(features).square().sum(), features


def test_the_gradient_of_a_result_is_that_of_eager() -> None:
    found = []
    for module in (planned(nn.Sequential(nn.Linear(6, 6), nn.Tanh()), (X,)), None):
        torch.manual_seed(0)
        result = (module or nn.Sequential(nn.Linear(6, 6), nn.Tanh()))(X)
        result.retain_grad()
        (2 * result).sum().backward()
        found.append(bits(result.grad))
    assert found[0] == found[1]


def test_the_kept_gradient_of_an_output_that_the_module_uses_is_an_error() -> None:
    loss, features = planned(Features(), (X,))(X)
    features.retain_grad()
    with pytest.raises(RuntimeError, match=r"gradient of an output of shape \[8, 6\] is asked for"):
        loss.backward()


def test_a_hook_on_an_output_that_the_module_uses_is_an_error() -> None:
    loss, features = planned(Features(), (X,))(X)
    features.register_hook(lambda gradient: None)
    with pytest.raises(RuntimeError, match=r"gradient of an output of shape \[8, 6\] is asked for"):
        (loss + features.sum()).backward()


def test_an_output_that_nobody_asks_about_trains_to_the_bits_of_eager() -> None:
    found = []
    for module in (planned(Features(), (X,)), Features()):
        loss, features = module(X)
        (loss + features.sum()).backward()
        found.append([bits(p.grad) for p in module.parameters() if p.grad is not None])
    assert found[0] == found[1]


def test_a_forward_that_keeps_the_gradient_of_what_it_returns_is_refused() -> None:
    with pytest.raises(UnsupportedModuleError, match="asks to keep the gradient of a tensor that it returns"):
        planned(Retaining(), (X,))
