"""A planned step beside a plain one on a card: its peak as the allocator records it, and a snapshot of its memory."""

from __future__ import annotations

import pickle

import pytest
import torch
from ogc_plan.adapters.pytorch import plan_of, within_budget
from ogc_plan.adapters.pytorch.beside_plain import BesidePlain, train_beside_plain
from torch import nn


@pytest.fixture
def found() -> BesidePlain:
    layers = [nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Dropout(0.1)) for _ in range(6)]
    module, x = nn.Sequential(*layers).cuda(), torch.randn(512, 256, device="cuda")
    made = plan_of(within_budget(module, (x,), budget="60%"))
    return train_beside_plain(made, module, (x,), {}, None, snapshot=True)


def test_the_peak_is_the_predicted_one(found: BesidePlain) -> None:
    number_and_its_gradient = 8
    assert found.planned.peak_nbytes == found.predicted_nbytes + number_and_its_gradient


def test_the_snapshot_has_what_the_step_took_and_from_where(found: BesidePlain) -> None:
    assert found.snapshot is not None
    snapshot = pickle.loads(found.snapshot)
    taken = [entry for entry in snapshot["device_traces"][0] if entry["action"] == "alloc"]
    assert sum(entry["size"] for entry in taken) > found.planned.peak_nbytes - found.plan.graph.stationary.total_nbytes
    assert any("beside_plain" in frame["filename"] for entry in taken for frame in entry["frames"])


def test_the_history_has_ended(found: BesidePlain) -> None:
    assert found.snapshot is not None
    assert not torch._C._cuda_isHistoryEnabled()
