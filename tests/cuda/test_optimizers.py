"""Optimizers between the steps: their states and temporaries are no part of a planned step's peak."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ogc_plan.adapters.pytorch import predict, within_budget
from torch import Tensor, nn

from models.meters.step_meters import by_cuda
from tests.cuda.steps.step import Loss

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw-foreach": lambda given: torch.optim.AdamW(given, foreach=True),
    "adamw-fused": lambda given: torch.optim.AdamW(given, fused=True),
    "sgd-momentum": lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.9),
}


def network() -> tuple[nn.Module, Tensor]:
    layers = (nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(6))
    return Loss(nn.Sequential(*layers)).cuda(), torch.ones(512, 256, device="cuda")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_peak_of_a_step_stays_the_predicted_one(name: str) -> None:
    module, x = network()
    optimizer = OPTIMIZERS[name](module.parameters())
    bound = within_budget(module, (x,), budget="60%")
    for _ in range(2):
        bound(x).backward()
        optimizer.step()
        optimizer.zero_grad()
    peak = by_cuda(lambda: bound(x).backward(), module, (x,))
    assert peak.requested_nbytes == predict(bound).total_nbytes


def test_a_step_onto_present_gradients_has_the_peak_predicted_for_it() -> None:
    module, x = network()
    bound = within_budget(module, (x,), budget="60%", grad_accumulation=True)
    for _ in range(2):
        bound(x).backward()
    peak = by_cuda(lambda: bound(x).backward(), module, (x,))
    assert peak.requested_nbytes == predict(bound, gradients_present=True).total_nbytes
