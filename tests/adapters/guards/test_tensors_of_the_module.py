"""Parameters and buffers that change between steps are seen, however many steps found them as they were."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ogc_plan.adapters.pytorch import within_budget
from ogc_plan.adapters.pytorch.execution.attachment import ChangedModuleError
from torch import Tensor, nn

from tests.modules.generators import seeded

X = torch.randn(4, 3, generator=seeded(0))


class Affine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))
        self.shift = nn.Parameter(torch.zeros(3))
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight * self.scale + self.shift).exp().sum()


def set_data(name: str, value: Tensor) -> Callable[[Affine], None]:
    return lambda module: setattr(getattr(module, name), "data", value)


CHANGES: dict[str, Callable[[Affine], object]] = {
    "the strides of a parameter": set_data("weight", torch.ones(3, 3).t()),
    "the shape of a parameter": set_data("shift", torch.zeros(1)),
    "the dtype of a parameter and a buffer": lambda module: module.double(),
    "a parameter's gradient": lambda module: module.shift.requires_grad_(False),
    "a buffer's gradient": lambda module: module.scale.requires_grad_(),
    "a buffer's class": lambda module: module._buffers.update(scale=nn.Parameter(torch.ones(3))),
    "a parameter that is gone": lambda module: module._parameters.update(shift=None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_after_two_steps_is_refused(change: str) -> None:
    module = Affine()
    bound = within_budget(module, (X,), budget="min", device="cpu", strategy="greedy", on_change="raise")
    for _ in range(2):
        bound(X).backward()
    CHANGES[change](bound)
    with pytest.raises(ChangedModuleError):
        bound(X)
