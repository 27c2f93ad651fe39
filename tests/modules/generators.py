"""Random generators of the device that the tests run on."""

from __future__ import annotations

import torch


def seeded(seed: int) -> torch.Generator:
    """A generator of the default device."""
    return torch.Generator(torch.get_default_device()).manual_seed(seed)
