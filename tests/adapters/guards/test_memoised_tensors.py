"""A forward may read tensors that a memoised function keeps, whether or not it has run before."""

from __future__ import annotations

import gc
from functools import lru_cache

import pytest
import torch
from ogc_plan.adapters.pytorch import UnsupportedModuleError
from ogc_plan.adapters.pytorch.capture.joint_graph import capture
from torch import Tensor, nn

from tests.modules.generators import seeded
from tests.modules.torch_training import measured, planned, predicted, train

X = (torch.randn(4, 6, generator=seeded(0)),)


@lru_cache(maxsize=4)
def order(size: int) -> Tensor:
    """The positions of a row, backwards."""
    return torch.arange(size - 1, -1, -1)


class Ordered(nn.Linear):
    """A linear layer whose result is put in another order."""

    def forward(self, x: Tensor) -> Tensor:
        return (super().forward(x)[:, order(6)] * x).square().sum()


@pytest.fixture(params=[True, False], ids=["filled", "empty"], autouse=True)
def filled(request: pytest.FixtureRequest) -> bool:
    """Whether the function has run before the module is planned."""
    order.cache_clear()
    if request.param:
        Ordered(6, 6)(*X)
    return bool(request.param)


def test_it_trains_to_the_bits_of_eager() -> None:
    module = Ordered(6, 6)
    trained = planned(module, X)
    assert train(trained, X, steps=2) == train(module, X, steps=2)


def test_it_trains_to_them_where_the_collector_has_frozen_the_function() -> None:
    gc.freeze()
    test_it_trains_to_the_bits_of_eager()


def test_it_is_planned_where_cards_have_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "default_generators", (torch.Generator("cpu"),))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert capture(Ordered(6, 6), X).gradients


def test_its_constants_are_part_of_the_predicted_peak() -> None:
    trained = planned(Ordered(6, 6), X)
    assert measured(trained, X) == predicted(trained)


@pytest.mark.values
def test_no_tensor_of_the_trace_is_kept() -> None:
    planned(Ordered(6, 6), X)
    assert order(6).tolist() == [5, 4, 3, 2, 1, 0]


@lru_cache(maxsize=4)
def projection(size: int) -> Tensor:
    """A fixed random matrix."""
    return torch.randn(size, size)


class Projected(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return (super().forward(x) @ projection(6)).square().sum()


class TestRandomResults:
    def test_a_function_that_draws_while_it_is_planned_is_refused(self) -> None:
        projection.cache_clear()
        with pytest.raises(UnsupportedModuleError, match="'projection' draws random numbers"):
            planned(Projected(6, 6), X)

    def test_calling_it_before_helps(self) -> None:
        projection(6)
        module = Projected(6, 6)
        assert train(planned(module, X), X) == train(module, X)
