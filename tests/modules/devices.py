"""The device that tests have their tensors on, and its random generators."""

from __future__ import annotations

import os

import pytest
import torch

DEVICE_TYPE = torch.get_default_device().type
STANDIN = DEVICE_TYPE != "cpu" and "CUDA_STANDIN" in os.environ
"""Whether the card is the stand-in for one, whose kernels compute nothing."""


def cpu_only(reason: str) -> pytest.MarkDecorator:
    """Skips a test where tensors are on a card."""
    return pytest.mark.skipif(DEVICE_TYPE != "cpu", reason=reason)


def random_state() -> torch.Tensor:
    """The states of all generators, on the host."""
    return torch.cat([torch.get_rng_state(), *torch.cuda.get_rng_state_all()])


def device_text() -> str:
    """The default device as profiles and plans name it."""
    if DEVICE_TYPE == "cpu":
        return f"cpu, {torch.get_num_threads()} threads"
    return f"cuda, {torch.cuda.get_device_name()}"
