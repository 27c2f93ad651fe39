"""States of the global random generators: saved at a random op's first run, put back for each re-run."""

from __future__ import annotations

import torch
from torch import fx

from .. import torch_private
from .allocations import tensors

_OF_TORCH = ("aten", "prims", "_c10d_functional", "c10d_functional", "higher_order")


def is_random(node: fx.Node) -> bool:
    """Whether a node draws from a generator; an operator from outside torch may, unless it says it does not."""
    target = node.target
    if not isinstance(target, torch_private.OpOverload):
        return False
    return torch.Tag.nondeterministic_seeded in target.tags or target.namespace not in _OF_TORCH


def generator_of(node: fx.Node) -> torch.device:
    """The device whose generator a random node draws from."""
    return tensors(node)[0].device


def state_nbytes(device: torch.device) -> int:
    """Bytes of the state of the generator of ``device``."""
    return int(_current(device).numel())


def _current(device: torch.device) -> torch.Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def save_state(device: torch.device) -> torch.Tensor:
    """The state of the generator of ``device``, as bytes in host memory.

    Taken into a tensor of its own, so that every meter of memory sees it.
    """
    now = _current(device)
    return torch.empty(now.shape, dtype=torch.uint8).copy_(now)


def swap_state(state: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Put ``state`` in place and return the one that it replaces."""
    now = _current(device)
    put_back(state, device)
    return now


def put_back(state: torch.Tensor, device: torch.device) -> None:
    """Put ``state`` in place. The one it replaces is not looked at: that would take memory beside the results."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
