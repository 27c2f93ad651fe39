"""What the allocator's statistics say of some steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.meters.step_meters import clear_gradients

RATE = 1e-3


@dataclass(frozen=True, slots=True)
class Peaks:
    """The most bytes that tensors asked for, that their blocks took and that were reserved, since `reset`."""

    requested_nbytes: int
    allocated_nbytes: int
    reserved_nbytes: int

    @staticmethod
    def reset() -> None:
        """Start from what is in use now."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    @classmethod
    def read(cls) -> Peaks:
        """The peaks by now."""
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        requested, allocated, reserved = (
            int(stats[f"{what}_bytes.all.peak"]) for what in ("requested", "allocated", "reserved")
        )
        return cls(requested, allocated, reserved)


def trained(module: nn.Module, arguments: tuple[Tensor, ...], steps: int) -> Peaks | None:
    """The peaks of some steps of SGD without ``.grad`` before them; None where they run out of memory."""
    clear_gradients(module, arguments)
    Peaks.reset()
    try:
        for _ in range(steps):
            module(*arguments).backward()
            with torch.no_grad():
                for parameter in module.parameters():
                    if parameter.grad is not None:
                        parameter.sub_(parameter.grad, alpha=RATE)
            clear_gradients(module, arguments)
    except torch.OutOfMemoryError:
        return None
    finally:
        clear_gradients(module, arguments)
    return Peaks.read()
