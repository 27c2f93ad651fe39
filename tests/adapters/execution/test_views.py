"""A view is made only where no tensor of the same memory and layout is there, and what is handed out is its own."""

from __future__ import annotations

import pytest
import torch
from ogc_plan.adapters.pytorch import within_budget
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


class Transposes(TorchDispatchMode):
    """Counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += func is torch.ops.aten.t.default
        return func(*args, **(kwargs or {}))


def bound(module: nn.Module, *args: Tensor) -> nn.Module:
    return within_budget(module, args, budget="100%", device="cpu", strategy="greedy")


def test_the_backward_of_a_linear_layer_transposes_one_tensor() -> None:
    """It is the gradient of the output, for that of the weight; the traced backward transposes five."""
    module, x = nn.Linear(4, 5, bias=False), torch.randn(3, 4, requires_grad=True)
    out = bound(module, x)(x)
    with Transposes() as backward:
        out.backward(torch.ones(3, 5))
    assert backward.count == 1


def test_two_outputs_in_the_same_memory_are_two_tensors() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            h = x.exp()
            return h, h.view(3, 4), h.t().t()

    x = torch.randn(3, 4, requires_grad=True)
    assert len(set(map(id, bound(Twice(), x)(x)))) == 3


@pytest.mark.values
def test_gradients_that_are_one_value_are_tensors_of_their_own() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(4, 3))

        def forward(self) -> Tensor:
            return (self.one + self.other.t()).exp()

    module = bound(Sum())
    module().backward(torch.ones(3, 4))
    module.one.grad.zero_()
    assert module.other.grad.sum() > 0


class Reshaped(nn.Module):
    """It makes no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.view(-1), self.weight.t()


@pytest.mark.values
def test_a_module_that_makes_nothing_but_views_of_parameters_gives_them_gradients() -> None:
    module, x = bound(Reshaped(), torch.ones(2, 2)), torch.ones(2, 2)
    module(x)[1].backward(torch.full((4, 3), 2.0))
    assert torch.equal(module.weight.grad, torch.full((3, 4), 2.0))


@pytest.mark.values
def test_a_module_that_makes_nothing_but_views_of_its_input_gives_it_a_gradient() -> None:
    x = torch.ones(2, 2, 2, requires_grad=True)
    bound(nn.Flatten(), x)(x).backward(torch.full((2, 4), 2.0))
    assert torch.equal(x.grad, torch.full((2, 2, 2), 2.0))
