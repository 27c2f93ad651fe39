"""A batch norm that eager training gives to cuDNN is cuDNN's in a planned step, too."""

from __future__ import annotations

import pytest
import torch
from ogc_plan.adapters.pytorch import within_budget
from torch import nn

from tests.cuda_standin.log import Launches
from tests.cuda_standin.log import launches as launched

CASES = [
    (dtype, last, mixed, stats)
    for dtype in (torch.float32, torch.float16, torch.bfloat16)
    for last in (False, True)
    for mixed in (False, True)
    for stats in (False, True)
]


def norms_of(found: Launches) -> set[str]:
    """The norms of a step, with the kernels of the native ones."""
    return {name for name in found.names() if "batch_norm" in name}


@pytest.mark.usefixtures("launches")
@pytest.mark.parametrize(("dtype", "channels_last", "mixed", "statistics"), CASES)
def test_a_planned_step_runs_the_norms_of_eager(
    dtype: torch.dtype, channels_last: bool, mixed: bool, statistics: bool
) -> None:
    module = nn.Sequential(nn.BatchNorm2d(64, track_running_stats=statistics), nn.ReLU()).cuda()
    module = module if mixed else module.to(dtype)
    images = torch.randn(8, 64, 8, 8, device="cuda", dtype=dtype)
    images = images.to(memory_format=torch.channels_last) if channels_last else images
    images.requires_grad_()
    bound = within_budget(module, (images,), budget="100%", strategy="keep-all")
    with launched() as eager:
        module(images).sum().backward()
    with launched() as planned:
        bound(images).sum().backward()
    assert norms_of(planned) == norms_of(eager) != set()
