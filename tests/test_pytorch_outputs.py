"""What a planned module returns is what the module returns: one tensor several times, views, changed in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ogc_plan.adapters.pytorch.capture import UnsupportedModuleError, capture
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.torch_training import measured, planned, predicted, train

IMAGES = (torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0)),)
Returned = Callable[["Convolved", Tensor], Any]


class Convolved(nn.Module):
    """A convolution, and what ``of`` returns of its result."""

    def __init__(self, of: Returned) -> None:
        super().__init__()
        self.of = of
        self.first, self.second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        return self.of(self, self.first(x))


def changed_in_place(net: Convolved, h: Tensor) -> Any:
    before = h
    return before, F.mish(h, inplace=True), net.second(h), h


AGAIN: dict[str, Returned] = {
    "changed in place": changed_in_place,
    "three times": lambda net, h: {"one": h, "other": [net.second(h.sin()), h], "last": h},
    "two tensors twice": lambda net, h: (h, net.second(h), h.tanh(), h, h.tanh()),
    "used in between": lambda net, h: (h, h * h.sin() + net.second(h), h),
}


def used_often(output: Any) -> Tensor:
    """Every output used twice, each with a weight of its own."""
    total = torch.zeros(())
    for place, leaf in enumerate(pytree.tree_leaves(output)):
        weights = torch.linspace(-1, 1, leaf.numel()).view(leaf.shape)
        total = total + (leaf * weights).sum() * (place + 1) + leaf.sin().sum()
    return total


def summed(output: Any) -> Tensor:
    """A loss of few bytes: every distinct output summed."""
    distinct = {id(leaf): leaf for leaf in pytree.tree_leaves(output)}
    return torch.stack([leaf.sum() for leaf in distinct.values()]).sum()


@pytest.mark.parametrize("name", AGAIN)
class TestReturnedAgain:
    def test_training_is_bitwise_equal(self, name: str) -> None:
        torch.manual_seed(0)
        module = Convolved(AGAIN[name])
        trained = planned(module, IMAGES, "1GB", "segments:2")
        assert train(trained, IMAGES, loss=used_often) == train(module, IMAGES, loss=used_often)

    def test_the_measured_peaks_are_the_predicted_ones(self, name: str) -> None:
        trained = planned(Convolved(AGAIN[name]), IMAGES, "1GB", "segments:2")
        assert measured(trained, IMAGES, loss=summed)[1] - predicted(trained)[1] in range(0, 64)

    def test_the_same_object_comes_back(self, name: str) -> None:
        module = Convolved(AGAIN[name])
        found, expected = (pytree.tree_leaves(net(*IMAGES)) for net in (planned(module, IMAGES), module))
        assert [id(leaf) == id(found[0]) for leaf in found] == [id(leaf) == id(expected[0]) for leaf in expected]


def test_a_tensor_returned_twice_takes_one_gradient() -> None:
    joint = capture(Convolved(lambda _, h: (h, h.sin(), h)), IMAGES)
    assert len([tangent for tangent in joint.tangents if tangent is not None]) == 2


class TestUnused:
    def test_an_output_without_a_use_adds_nothing(self) -> None:
        module = Convolved(lambda net, h: (net.second(h.sin()).square().sum(), h, h.exp()))
        trained = planned(module, IMAGES, "1GB", "segments:2")
        assert train(trained, IMAGES) == train(module, IMAGES)

    def test_one_that_decides_how_a_sum_of_gradients_lies_is_refused(self) -> None:
        module = Convolved(lambda _, h: (h.transpose(2, 3).softmax(-1).square().sum(), h))
        trained = planned(module, IMAGES)
        with pytest.raises(UnsupportedModuleError, match="leaves out output 1"):
            trained(*IMAGES)[0].backward()

    def test_it_is_none_when_it_is_used(self) -> None:
        module = Convolved(lambda _, h: (h.transpose(2, 3).softmax(-1).square().sum(), h))
        trained = planned(module, IMAGES)
        assert train(trained, IMAGES, loss=used_often) == train(module, IMAGES, loss=used_often)
