"""The registry of the zoo: how to build each network and what to feed it.

The first 18 come with the batches and extents at which OGC was published (Feng and Huang, CVPR 2021), where
Inception-v3 has images of 300 x 300 and no auxiliary classifier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from .networks.alexnet import alexnet
from .networks.densenet import densenet121, densenet161, densenet169, densenet201
from .networks.gpt2 import gpt2
from .networks.inception import inception_v3
from .networks.resnet import resnet18, resnet34, resnet50, resnet101, resnet152
from .networks.searched_cells import amoebanet_cifar10, darts_cifar10, nasnet_cifar10
from .networks.unet import unet
from .networks.vgg import vgg11, vgg13, vgg16, vgg19
from .networks.vit import vit_b16

Takes = Literal["images", "tokens"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A network and its inputs.

    ``extent`` is the side of a square image in pixels, or the length of a token sequence. The ``small``
    sizes fit a training step on a CPU with 8 GB; the others are the batches that people train with.
    """

    name: str
    build: Callable[[int], nn.Module]
    takes: Takes
    batch: int
    extent: int
    small_batch: int
    small_extent: int

    @property
    def takes_tokens(self) -> bool:
        """Whether ``extent`` is the length of a token sequence."""
        return self.takes == "tokens"

    def inputs(self, batch: int, extent: int) -> tuple[Tensor, ...]:
        """Example inputs on the current default device: images [N, 3, S, S] or token ids [N, T]."""
        if self.takes_tokens:
            return (torch.zeros(batch, extent, dtype=torch.int64),)
        return (torch.zeros(batch, 3, extent, extent),)

    def describe(self, batch: int, extent: int) -> str:
        """The input as text: ``64x3x224x224`` or ``8x1024``."""
        return "x".join(str(size) for size in self.inputs(batch, extent)[0].shape)


def _images(name: str, build: Callable[[], nn.Module], batch: int, extent: int, small: tuple[int, int]) -> Entry:
    """A network whose weights do not depend on the extent; ``small`` is a batch and an extent."""
    return Entry(name, lambda _: build(), "images", batch, extent, *small)


_ALL = (
    _images("alexnet", alexnet, 1024, 224, (8, 224)),
    _images("vgg11", vgg11, 64, 224, (2, 64)),
    _images("vgg13", vgg13, 64, 224, (2, 64)),
    _images("vgg16", vgg16, 64, 224, (2, 64)),
    _images("vgg19", vgg19, 64, 224, (2, 64)),
    _images("resnet18", resnet18, 256, 224, (4, 224)),
    _images("resnet34", resnet34, 128, 224, (4, 224)),
    _images("resnet50", resnet50, 64, 224, (4, 224)),
    _images("resnet101", resnet101, 32, 224, (2, 224)),
    _images("resnet152", resnet152, 16, 224, (2, 128)),
    _images("densenet121", densenet121, 32, 224, (2, 128)),
    _images("densenet161", densenet161, 16, 224, (2, 128)),
    _images("densenet169", densenet169, 32, 224, (2, 128)),
    _images("densenet201", densenet201, 16, 224, (2, 128)),
    _images("inception_v3", inception_v3, 32, 300, (2, 139)),
    _images("nasnet_cifar10", nasnet_cifar10, 64, 32, (2, 32)),
    _images("amoebanet_cifar10", amoebanet_cifar10, 64, 32, (2, 32)),
    _images("darts_cifar10", darts_cifar10, 64, 32, (2, 32)),
    Entry("gpt2", lambda _: gpt2(), "tokens", 8, 1024, 1, 512),
    Entry("vit_b16", vit_b16, "images", 64, 224, 2, 224),
    _images("unet", unet, 4, 512, (1, 256)),
)

ZOO: dict[str, Entry] = {entry.name: entry for entry in _ALL}
"""Every network by name."""
