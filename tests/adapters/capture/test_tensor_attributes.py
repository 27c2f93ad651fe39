"""Tensors that a module keeps as plain attributes are read at each step, as in eager training."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ogc_plan.adapters.pytorch import export
from ogc_plan.adapters.pytorch.errors import UnsupportedModuleError
from ogc_plan.adapters.pytorch.execution.attachment import InputMismatchError
from torch import Tensor, nn

from tests.modules.generators import seeded
from tests.modules.torch_training import measured, planned, predicted, train

ROWS = (torch.randn(4, 6, generator=seeded(0)),)


class Scaled(nn.Module):
    """A linear layer whose result is scaled by an attribute, and one whose attribute decides and scales."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.table, self.unread = torch.linspace(-1, 1, 24).view(4, 6), torch.zeros(3)
        self.second.scale = torch.tensor(2.0)

    def forward(self, x: Tensor) -> Tensor:
        hidden = (self.first(x) * self.table).sin()
        if self.second.scale > 0:
            hidden = hidden * self.second.scale
        return self.second(hidden).square().sum()


def test_training_is_bitwise_equal() -> None:
    module = Scaled()
    assert train(planned(module, ROWS), ROWS, steps=3) == train(module, ROWS, steps=3)


def written(net: Scaled) -> None:
    net.table.mul_(3)


def replaced(net: Scaled) -> None:
    net.table, net.unread = torch.ones(4, 6), None


@pytest.mark.parametrize("change", [written, replaced])
def test_training_is_bitwise_equal_after_an_attribute_changed(change: Callable[[nn.Module], None]) -> None:
    module = Scaled()
    trained = planned(module, ROWS)
    module.table = trained.table = module.table.clone()
    change(trained)
    module.table = trained.table
    assert train(trained, ROWS, steps=2) == train(module, ROWS, steps=2)


def test_the_measured_peak_is_the_predicted_one() -> None:
    trained = planned(Scaled(), ROWS)
    assert measured(trained, ROWS)[1] - predicted(trained)[1] in range(0, 64)


def test_planning_leaves_tensor_attributes_in_place() -> None:
    module = Scaled()
    before = dict(module.__dict__)
    planned(module, ROWS)
    assert (module.__dict__, module._buffers) == (before, {})


def test_a_module_with_tensor_attributes_is_exported(tmp_path: object) -> None:
    class Undecided(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x) * self.table * self.second.scale).sum()

    export(Undecided(), ROWS, f"{tmp_path}/scaled.onnx")


@pytest.mark.parametrize("value", [torch.ones(1, 6), None], ids=["another shape", "none"])
def test_one_of_another_kind_is_refused(value: Tensor | None) -> None:
    trained = planned(Scaled(), ROWS)
    trained.table = value
    with pytest.raises(InputMismatchError, match="attribute 'table' is"):
        trained(*ROWS)


@pytest.mark.values
def test_one_that_decides_otherwise_now_is_refused() -> None:
    trained = planned(Scaled(), ROWS)
    trained.second.scale = torch.tensor(-1.0)
    with pytest.raises(InputMismatchError, match=r"second\.scale"):
        trained(*ROWS)


def test_a_write_between_forward_and_backward_is_refused() -> None:
    trained = planned(Scaled(), ROWS)
    loss = trained(*ROWS)
    trained.table.mul_(2)
    with pytest.raises(RuntimeError, match="table was modified in place"):
        loss.backward()


class Writing(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        self.table.add_(1)
        return (self.first(x) * self.table).sum()


class Graded(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.table.requires_grad_()


class Listed(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return (self.first(x) * LIST[0]).sum()


LIST = [torch.ones(6)]


@pytest.mark.parametrize(("network", "said"), [
    (Writing, "changes attribute 'table' in place"),
    (Graded, r"reads a tensor of shape \(4, 6\) in aten\.mul\.Tensor"),
    (Listed, r"reads a tensor of shape \(6,\) in aten\.mul\.Tensor"),
])  # fmt: skip
def test_a_tensor_that_is_not_constant_in_the_step_is_refused_by_name(network: type[Scaled], said: str) -> None:
    with pytest.raises(UnsupportedModuleError, match=said):
        planned(network(), ROWS)
