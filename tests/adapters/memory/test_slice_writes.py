"""Writes into parts of a tensor run in place, as in eager training: the same bits, and no second tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ogc_plan.adapters.pytorch.capture.joint_graph import capture
from ogc_plan.adapters.pytorch.memory.slice_writes import SLICE_KERNELS, WRITES
from ogc_plan.adapters.pytorch.step.step_graph import TracedStep
from torch import Tensor, nn

from models.meters.storage_meter import measure_step
from tests.modules.torch_training import measured, planned, predicted, train

ROWS = (torch.randn(16, 12, 8, generator=torch.Generator().manual_seed(0)),)


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


def strided(h: Tensor, _: Tensor) -> Tensor:
    h[:, ::2].mul_(2)
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


def into_the_result_of_another(h: Tensor, x: Tensor) -> Tensor:
    made = h * x
    made[1].div_(2)
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


IN_PLACE = (added, copied, strided, several, nested, into_the_result_of_another)
ALL = (*IN_PLACE, into_zeros, read_before, read_through_a_view, of_itself, rounding_more_than_once)


@pytest.mark.parametrize("write", ALL)
class TestWrites:
    @pytest.mark.parametrize("strategy", ["optimal", "segments:2"])
    def test_training_is_bitwise_equal(self, write: Callable[[Tensor, Tensor], Tensor], strategy: str) -> None:
        module = Writing(write)
        trained = planned(module, ROWS, "100%" if strategy == "optimal" else "1GB", strategy)
        assert train(trained, ROWS, steps=2, loss=torch.sum) == train(module, ROWS, steps=2, loss=torch.sum)

    def test_training_in_the_fewest_bytes_is_bitwise_equal(self, write: Callable[[Tensor, Tensor], Tensor]) -> None:
        module = Writing(write)
        trained = planned(module, ROWS, "min")
        assert train(trained, ROWS, loss=torch.sum) == train(module, ROWS, loss=torch.sum)

    def test_the_measured_peak_is_the_predicted_one(self, write: Callable[[Tensor, Tensor], Tensor]) -> None:
        trained = planned(Writing(write), ROWS)
        assert measured(trained, ROWS, loss=torch.sum)[1] - predicted(trained)[1] in range(-64, 64)


@pytest.mark.parametrize("write", IN_PLACE)
def test_the_forward_makes_no_second_tensor(write: Callable[[Tensor, Tensor], Tensor]) -> None:
    step = TracedStep(capture(Writing(write), ROWS))
    written = [node for node in step.reuse.fused_nodes if node.target in SLICE_KERNELS]
    assert [node for op in step.ops for node in op.runs if node.target in WRITES and node not in written] == []


@pytest.mark.parametrize("write", [added, copied, several, nested])
def test_storing_all_takes_no_more_than_eager(write: Callable[[Tensor, Tensor], Tensor]) -> None:
    module = Writing(write)
    eager, ours = (measure_step(net, ROWS).activations.nbytes for net in (module, planned(module, ROWS)))
    assert ours <= eager
