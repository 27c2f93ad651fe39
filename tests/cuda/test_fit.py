"""The largest batch within a memory of a card, which holds its context and what the allocator reserves, too."""

from __future__ import annotations

import gc

import pytest
import torch
from ogc_plan.adapters.pytorch import fit, within_budget
from ogc_plan.planner.errors import InfeasibleBudgetError
from torch import Tensor, nn

from models.cuda.card import context_nbytes
from models.cuda.peaks import trained

ROOM = 256 << 20


class Net(nn.Module):
    """Two layers of which each sample takes 4 MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).sum()


def samples(batch: int = 1) -> Tensor:
    return torch.zeros(batch, 1024, 1024, device="cuda")


def test_the_step_of_the_largest_batch_reserves_no_more_than_the_memory() -> None:
    module, memory = Net().cuda(), context_nbytes() + ROOM
    size = fit(module, (samples(),), memory=f"{memory}B", effort="fast", optimizer="none", multiple_of=4).largest.size
    gc.collect()
    bound = within_budget(module, (samples(size),), budget=f"{memory}B", effort="fast", optimizer="none")
    peaks = trained(bound, (samples(size),), 2)
    assert peaks is not None
    assert ROOM // 2 < peaks.reserved_nbytes <= ROOM


def test_the_memory_that_a_refusal_names_is_enough() -> None:
    module = Net().cuda()
    with pytest.raises(InfeasibleBudgetError, match="not even batch 1 fits 1MB") as refused:
        fit(module, (samples(),), memory="1MB", effort="fast")
    assert fit(module, (samples(),), memory=f"{refused.value.enough_nbytes}B", effort="fast").largest.size >= 1
