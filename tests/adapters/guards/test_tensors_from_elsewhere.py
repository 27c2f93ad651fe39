"""A tensor that the forward takes from a global or a container is refused, whatever is computed of it first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import UnsupportedModuleError, within_budget
from torch import Tensor

from tests.modules.generators import seeded

X = torch.randn(4, 6, generator=seeded(0))
SCALE: Any = torch.tensor(3.0)
SCALES: dict[str, Tensor] = {"x": torch.tensor(2.0)}


def twice_a_global(x: Tensor) -> Tensor:
    return x * (SCALE * 2)


def an_item_negated(x: Tensor) -> Tensor:
    return x * -SCALES["x"]


def a_number_of_it(x: Tensor) -> Tensor:
    return x * float(SCALE + 1)


class Scaled(torch.nn.Linear):
    """A layer behind a function that computes with a number in a tensor."""

    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__(6, 3)
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.call(x))


@pytest.mark.parametrize("call", [twice_a_global, an_item_negated, a_number_of_it])
def test_what_is_computed_of_a_tensor_from_elsewhere_alone_is_refused(call: Callable[[Tensor], Tensor]) -> None:
    """The plan would keep the number of its example when the name gets another tensor."""
    net = within_budget(Scaled(call), budget="100%", device="cpu")
    with pytest.raises(UnsupportedModuleError, match=r"reads a tensor of shape \(\) in aten.* that is no argument"):
        net(X)
