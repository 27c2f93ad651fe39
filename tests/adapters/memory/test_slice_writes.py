"""Writes into parts of a tensor run in place, as in eager training: the same bits, and no second tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from models.meters.storage_meter import measure_step
from tests.modules.generators import seeded
from tests.modules.torch_training import dense_sum, measured, planned, predicted, train

ROWS = (torch.randn(16, 12, 8, generator=seeded(0)),)


class Writing(nn.Module):
    """Two linear layers, and between them what ``write`` makes of the first one's result and the argument."""

    def __init__(self, write: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.write = write
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.write(self.first(x), x))


def added(h: Tensor, x: Tensor) -> Tensor:
    h[1].add_(x[0])
    return h


def copied(h: Tensor, x: Tensor) -> Tensor:
    h[:, 0] = x[:, 1]
    return h


def several(h: Tensor, x: Tensor) -> Tensor:
    h[2:5].neg_()
    h[:, 3].sub_(x[:, 0])
    h[..., :2] = 0.5
    return h


def nested(h: Tensor, x: Tensor) -> Tensor:
    h[1:9, 2, :4].add_(x[1:9, 2, :4])
    return h


def into_zeros(h: Tensor, x: Tensor) -> Tensor:
    made = torch.zeros_like(x)
    made[:8] = h[:8]
    made[8:].add_(h[8:])
    return made


def read_before(h: Tensor, x: Tensor) -> Tensor:
    other = h * 2
    h[1].add_(x[0])
    return h + other


def read_through_a_view(h: Tensor, x: Tensor) -> Tensor:
    row = h[1]
    h[:, 1].mul_(x[:, 1])
    return h + row


def of_itself(h: Tensor, _: Tensor) -> Tensor:
    h[1].add_(h[0])
    h[2] = h[3]
    return h


def rounding_more_than_once(h: Tensor, _: Tensor) -> Tensor:
    h[:, ::2].tanh_()
    return h


IN_PLACE = (added, copied, several, nested)
ALL = (*IN_PLACE, into_zeros, read_before, read_through_a_view, of_itself, rounding_more_than_once)


@pytest.fixture(
    scope="module",
    params=[(write, budget) for write in ALL for budget in ("100%", "min")],
    ids=lambda case: f"{case[0].__name__}-{case[1]}",
)
def nets(request: pytest.FixtureRequest) -> tuple[nn.Module, nn.Module]:
    """A module that writes, and the same planned."""
    write, budget = request.param
    return Writing(write), planned(Writing(write), ROWS, budget)


def squares(output: Tensor) -> Tensor:
    """A loss whose gradient has the strides of the output: that of a plain sum has none, and plans copy it."""
    return output.square().sum()


class TestWrites:
    def test_training_is_bitwise_equal(self, nets: tuple[nn.Module, nn.Module]) -> None:
        module, trained = nets
        assert train(trained, ROWS, steps=2, loss=squares) == train(module, ROWS, steps=2, loss=squares)

    def test_the_measured_peak_is_the_predicted_one(self, nets: tuple[nn.Module, nn.Module]) -> None:
        trained = nets[1]
        assert measured(trained, ROWS, loss=dense_sum)[1] - predicted(trained)[1] in range(-64, 64)


@pytest.mark.parametrize("write", IN_PLACE)
def test_storing_all_takes_no_more_than_eager(write: Callable[[Tensor, Tensor], Tensor]) -> None:
    module = Writing(write)
    eager, ours = (measure_step(net, ROWS).activations.nbytes for net in (module, planned(module, ROWS)))
    assert ours <= eager
