"""Where the adapter's tests have their tensors: on the CPU, or with ``TEST_DEVICE=cuda`` on a card."""

from __future__ import annotations

import os

import torch

DEVICE = os.environ.get("TEST_DEVICE", "cpu")

if DEVICE != "cpu":
    if "CUDA_STANDIN" in os.environ:
        from tests.cuda_standin import cudnn

        cudnn.install()
    torch.set_default_device(DEVICE)
