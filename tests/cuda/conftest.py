"""Tests that need CUDA: a card, or the stand-in for one (tests/cuda_standin)."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
import torch
from ogc_plan.adapters.pytorch.execution.step_pool import StepPool

HERE = Path(__file__).parent
STANDIN = "CUDA_STANDIN" in os.environ

if STANDIN:
    from tests.cuda_standin import cudnn

    cudnn.install()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a card, or the log of the stand-in, where there is none."""
    for item in [item for item in items if item.path.is_relative_to(HERE)]:
        if not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device: make cuda-standin"))
        elif "launches" in getattr(item, "fixturenames", ()) and not STANDIN:
            item.add_marker(pytest.mark.skip(reason="needs the log of the stand-in: make cuda-standin"))


@pytest.fixture(autouse=True)
def clean_card() -> None:
    """Nothing of the test before is cached."""
    if torch.cuda.is_available():
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        StepPool.release_idle()
        torch.cuda.reset_peak_memory_stats()
        torch.manual_seed(0)


@pytest.fixture
def launches() -> None:
    """Marks a test that reads the log or the counters of the stand-in."""
