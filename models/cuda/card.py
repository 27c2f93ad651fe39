"""The card that the commands of this folder run on: NVIDIA's, or the stand-in of tests/cuda_standin."""

from __future__ import annotations

import os
from typing import Any

import torch
from ogc_plan.adapters.pytorch.execution.card_memory import LARGEST_CONTEXT

from models.cuda.settings import ALLOCATOR, EXPANDABLE, STANDIN, STANDIN_MEMORY


def prepare() -> None:
    """Let the stand-in answer for cuDNN, too. To be called before the first step of a process."""
    if STANDIN:
        from tests.cuda_standin import cudnn

        cudnn.install()


def limit(nbytes: int) -> None:
    """Let this process reserve ``nbytes`` of the card and no more."""
    torch.cuda.set_per_process_memory_fraction(min(1.0, nbytes / torch.cuda.get_device_properties(0).total_memory))


def context_nbytes() -> int:
    """What a budget in bytes counts as the CUDA context: what is in use beside this process's allocator."""
    free, total = torch.cuda.mem_get_info()
    return min(LARGEST_CONTEXT, total - free - torch.cuda.memory_reserved())


def environment_with(nbytes: int) -> dict[str, str]:
    """The variables of a process with expandable segments whose card, if it is the stand-in, has ``nbytes``."""
    return {**os.environ, ALLOCATOR: os.environ.get(ALLOCATOR, EXPANDABLE), STANDIN_MEMORY: str(nbytes)}


def described() -> dict[str, Any]:
    """The card and what runs on it, for a file of results."""
    return {
        "card": torch.cuda.get_device_name(),
        "standin": STANDIN,
        "capability": ".".join(map(str, torch.cuda.get_device_capability())),
        "card_nbytes": torch.cuda.get_device_properties(0).total_memory,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "allocator": torch.cuda.memory._snapshot()["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] or "default",
    }
