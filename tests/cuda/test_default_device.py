"""Scripts may make CUDA torch's default device, after which tensors without a device are made on the card."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from ogc_plan.adapters.pytorch import plan_of, within_budget
from torch import nn


@pytest.fixture(autouse=True)
def _default_device() -> Iterator[None]:
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


def test_planned_training_leaves_the_generator_where_eager_training_does() -> None:
    layers = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.2))]
    module, x = nn.Sequential(*layers), torch.ones(64, 32)
    bound = within_budget(module, (x,), budget="100%", strategy="segments:2")
    assert any(name.startswith("native_dropout") for name in plan_of(bound).recomputed)
    found = []
    for net in (module, bound):
        torch.manual_seed(1)
        for _ in range(2):
            net(x).square().mean().backward()
        found.append((torch.cuda.get_rng_state().tolist(), torch.get_rng_state().tolist()))
    assert found[0] == found[1]
