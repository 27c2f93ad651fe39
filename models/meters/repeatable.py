"""Torch set up to repeat itself. Import this module before torch, which reads the environment once, when it loads."""

from __future__ import annotations

import os

os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # idle threads give their core back, where others want it
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to repeat itself

import torch


def repeatable(device: str) -> None:
    """Ask torch for the algorithms that repeat themselves; on the CPU all do."""
    if device == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False
