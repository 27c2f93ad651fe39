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


class Views(TorchDispatchMode):
    """Counts calls that make nothing but views."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += func.is_view
        return func(*args, **(kwargs or {}))


class Heads(nn.Module):
    """Queries, keys and values of three heads, from one product."""

    def forward(self, x: Tensor) -> Tensor:
        queries, keys, values = (part.view(2, 5, 3, 4).transpose(1, 2) for part in x.exp().split(12, dim=-1))
        return (queries * keys * values).exp()


def test_a_view_of_views_is_made_in_one_call() -> None:
    """The forward makes three of them; traced, it splits once, and then makes three views and transposes those."""
    x = torch.randn(2, 5, 36, requires_grad=True)
    module = bound(Heads(), x)
    with Views() as forward:
        module(x)
    assert forward.count - _views_around_a_step() == 3


def _views_around_a_step() -> int:
    x = torch.randn(3, requires_grad=True)
    module = bound(Exponential(), x)
    with Views() as forward:
        module(x)
    return forward.count


class Exponential(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


@torch.library.custom_op("ogc_plan_tests::turned", mutates_args=())
def turned(x: Tensor) -> Tensor:
    """A copy of a matrix that lies in memory column after column."""
    return x.t().contiguous().t().clone(memory_format=torch.preserve_format)


@turned.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)  # it does not say so


turned.register_autograd(lambda ctx, gradient: gradient)


class OfTurned(nn.Module):
    """A view of a view of a tensor that does not lie in memory as tracing was told."""

    def forward(self, x: Tensor) -> Tensor:
        return (turned(x).t().unsqueeze(0) * 2).exp()


@pytest.mark.values
def test_a_view_of_views_is_right_where_memory_lies_otherwise_than_traced() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    assert torch.equal(bound(OfTurned(), x)(x), OfTurned()(x))


class WrittenAtBothEnds(nn.Module):
    """Fills blocks of scores, parts of the last one and of the first, as attention in a sliding window does."""

    def forward(self, x: Tensor) -> Tensor:
        h = x * 2
        scores = h.new_zeros(8, 6, 4, 9)
        scores[:, :-1, :, 4:] = h[:, :, :4, :5]
        scores[:, -1, :, 4:] = h[:, -1, 4:, :5]
        scores[:, 0, :, :5] = h[:, 0, :4, 4:]
        return scores.exp()


@pytest.mark.values
def test_writes_into_two_slices_of_one_shape_go_to_each() -> None:
    x = torch.randn(8, 5, 8, 9, requires_grad=True)
    assert torch.equal(bound(WrittenAtBothEnds(), x)(x), WrittenAtBothEnds()(x))
