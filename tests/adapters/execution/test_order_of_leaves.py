"""In which order autograd adds to the gradients of leaves is known: what was added is released in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch.execution.request_trace import order_of_leaves
from torch import Tensor


class Part(torch.autograd.Function):
    """One part of a backward: it gives each leaf a gradient, and lets a later part run."""

    @staticmethod
    def forward(ctx: Any, token: Tensor | None, *leaves: Tensor) -> Tensor:
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return tuple(torch.ones(()) if needed else None for needed in ctx.needs_input_grad)


@pytest.mark.parametrize("later_part", [False, True], ids=["the last part", "one of several"])
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 32, 100])
def test_leaves_are_dealt_with_in_the_order_of_a_heap(number: int, later_part: bool) -> None:
    leaves = [torch.zeros((), requires_grad=True) for _ in range(number)]
    token = Part.apply(None, torch.zeros((), requires_grad=True)) if later_part else None
    found: list[int] = []
    for position, leaf in enumerate(leaves):
        leaf.register_post_accumulate_grad_hook(lambda _, position=position: found.append(position))
    Part.apply(token, *leaves).backward()
    assert order_of_leaves(number, later_part=later_part) == found
