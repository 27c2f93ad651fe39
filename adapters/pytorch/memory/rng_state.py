"""States of the global random generators: saved when a random op first runs, restored when it is recomputed."""

from __future__ import annotations

import torch
from torch import fx

from .. import torch_private
from .allocations import tensors

_OF_TORCH = ("aten", "prims", "_c10d_functional", "c10d_functional", "higher_order")


def is_random(node: fx.Node) -> bool:
    """Whether a node may draw from a generator: a random operator of torch, or any custom operator."""
    target = node.target
    if not isinstance(target, torch_private.OpOverload):
        return False
    return torch.Tag.nondeterministic_seeded in target.tags or target.namespace not in _OF_TORCH


def generator_of(node: fx.Node) -> torch.device:
    """The device whose generator a random node draws from."""
    return tensors(node)[0].device


def state_nbytes(device: torch.device) -> int:
    """Bytes of ``device`` that a saved state of its generator takes: states of CUDA generators are in host memory."""
    return 0 if device.type == "cuda" else int(_current(device).numel())


def _current(device: torch.device) -> torch.Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def save_state(device: torch.device) -> torch.Tensor:
    """A copy of the generator state of ``device``, in host memory that every meter sees."""
    now = _current(device)
    return torch.empty(now.shape, dtype=torch.uint8, device="cpu").copy_(now)


def swap_state(state: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Set the generator to ``state`` and return the state it had."""
    now = _current(device)
    restore_state(state, device)
    return now


def restore_state(state: torch.Tensor, device: torch.device) -> None:
    """Set the generator to ``state``. The state it had is not read: that would allocate memory."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
