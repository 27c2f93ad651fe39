"""Where the adapter's tests have their tensors: on the CPU, or with ``TEST_DEVICE=cuda`` on a card."""

from __future__ import annotations

import os

import pytest

from tests.modules import collector

DEVICE = os.environ.get("TEST_DEVICE", "cpu")
STANDIN = DEVICE != "cpu" and "CUDA_STANDIN" in os.environ

if DEVICE != "cpu":
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when torch is imported

import torch  # noqa: E402

if DEVICE != "cpu":
    torch.set_default_device(DEVICE)
    # Sums in a fixed order, so that two runs of eager have the same bits; what has no such kernel warns.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # no kernels that only fill
if STANDIN:
    from tests.cuda_standin import cudnn

    cudnn.install()
    cudnn.CONVOLUTION_WORKSPACE_NBYTES = 4096  # as small as the networks here


@pytest.fixture(scope="session", autouse=True)
def quick_collections() -> None:
    """Spare the collector what torch imports with its first step, too."""
    from ogc_plan.adapters.pytorch import within_budget

    within_budget(torch.nn.Linear(2, 2), (torch.zeros(2, 2),), budget="100%")
    collector.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what compares values where kernels compute nothing."""
    for item in items if STANDIN else []:
        if item.get_closest_marker("values"):
            item.add_marker(pytest.mark.skip(reason="compares values: kernels of the stand-in compute nothing"))
