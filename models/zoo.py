"""The registry of the zoo: how to build each network and what to feed it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .gpt2 import gpt2
from .resnet import resnet50
from .unet import unet
from .vit import vit_b16


@dataclass(frozen=True, slots=True)
class Entry:
    """A network and its inputs.

    ``extent`` is the side of a square image in pixels, or the length of a token sequence. The ``small``
    sizes fit a training step on a CPU with 8 GB; the others are the batches that people train with.
    """

    name: str
    build: Callable[[int], nn.Module]
    takes_tokens: bool
    batch: int
    extent: int
    small_batch: int
    small_extent: int

    def inputs(self, batch: int, extent: int) -> tuple[Tensor, ...]:
        """Example inputs on the current default device: images [N, 3, S, S] or token ids [N, T]."""
        if self.takes_tokens:
            return (torch.zeros(batch, extent, dtype=torch.int64),)
        return (torch.zeros(batch, 3, extent, extent),)

    def describe(self, batch: int, extent: int) -> str:
        """The input as text: ``64x3x224x224`` or ``8x1024``."""
        return "x".join(str(size) for size in self.inputs(batch, extent)[0].shape)


ZOO = {
    entry.name: entry
    for entry in (
        Entry("resnet50", lambda extent: resnet50(), False, 64, 224, small_batch=4, small_extent=224),
        Entry("gpt2", lambda extent: gpt2(), True, 8, 1024, small_batch=1, small_extent=512),
        Entry("vit_b16", vit_b16, False, 64, 224, small_batch=2, small_extent=224),
        Entry("unet", lambda extent: unet(), False, 4, 512, small_batch=1, small_extent=256),
    )
}
