"""The registry of the zoo: how to build each network and what to feed it.

The first 18 come with the batches and extents at which OGC was published (Feng and Huang, CVPR 2021), where
Inception-v3 has images of 300 x 300 and no auxiliary classifier. Those of ``resnet8_v2_cifar10`` to 26, one to four
blocks a stage, are those of the gradient-checkpointing package's benchmark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from models.networks.alexnet import alexnet
from models.networks.bert import bert_base
from models.networks.cifar_resnet import cifar_resnet, cifar_resnet_v2
from models.networks.convnext import convnext_t
from models.networks.densenet import densenet121, densenet161, densenet169, densenet201
from models.networks.diffusion_unet import ddpm_cifar10
from models.networks.gpt2 import gpt2
from models.networks.inception import inception_v3
from models.networks.llama import Llama, LlamaConfig, llama_1b
from models.networks.lstm import lstm_classifier
from models.networks.resnet import resnet18, resnet34, resnet50, resnet101, resnet152
from models.networks.searched_cells import amoebanet_cifar10, darts_cifar10, nasnet_cifar10
from models.networks.t5 import t5_small
from models.networks.unet import unet
from models.networks.vgg import vgg11, vgg13, vgg16, vgg19
from models.networks.vit import vit_b16, vit_l16

Takes = Literal["images", "tokens", "two sequences", "images and steps"]
SMALL_LLAMA = LlamaConfig(vocabulary=1024, layers=2, heads=8, groups=2, width=256, hidden=1024)


@dataclass(frozen=True, slots=True)
class Entry:
    """A network and its inputs.

    ``extent`` is the side of a square image in pixels, or the length of a token sequence. The ``small``
    sizes fit a training step on a CPU with 8 GB; the others are the batches that people train with. A network
    whose weights alone do not fit has a ``reduced`` form for the small sizes.
    """

    name: str
    build: Callable[[int], nn.Module]
    takes: Takes
    batch: int
    extent: int
    small_batch: int
    small_extent: int
    reduced: Callable[[int], nn.Module] | None = None

    @property
    def takes_tokens(self) -> bool:
        """Whether ``extent`` is the length of a token sequence."""
        return self.takes in ("tokens", "two sequences")

    def build_small(self, extent: int) -> nn.Module:
        """The network to train at the small sizes: the published one, unless it is ``reduced``."""
        return (self.reduced or self.build)(extent)

    def inputs(self, batch: int, extent: int) -> tuple[Tensor, ...]:
        """Example inputs on the current default device.

        Images [N, 3, S, S], with time steps [N] for a diffusion model; token ids [N, T], of two sequences for
        an encoder with a decoder.
        """
        if self.takes_tokens:
            ids = torch.zeros(batch, extent, dtype=torch.int64)
            return (ids,) if self.takes == "tokens" else (ids, ids.clone())
        images = torch.zeros(batch, 3, extent, extent)
        return (images,) if self.takes == "images" else (images, torch.zeros(batch, dtype=torch.int64))

    def describe(self, batch: int, extent: int) -> str:
        """The inputs as text: ``64x3x224x224``, ``8x1024`` or ``8x512, 8x512``."""
        with torch.device("meta"):
            return ", ".join("x".join(map(str, tensor.shape)) for tensor in self.inputs(batch, extent))


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
    _images("vgg16_two_classes", lambda: vgg16(2), 64, 224, (2, 64)),
    _images("resnet110_cifar10", cifar_resnet, 64, 32, (4, 32)),
    *(
        _images(f"resnet{layers}_v2_cifar10", partial(cifar_resnet_v2, layers), 1280, 32, (16, 32))
        for layers in (8, 14, 20, 26)
    ),
    _images("convnext_t", convnext_t, 64, 224, (2, 96)),
    Entry("vit_b16", vit_b16, "images", 64, 224, 2, 224),
    Entry("vit_l16", vit_l16, "images", 32, 224, 1, 96),
    Entry("gpt2", lambda _: gpt2(), "tokens", 8, 1024, 1, 512),
    Entry("bert_base", lambda _: bert_base(), "tokens", 32, 512, 2, 64),
    Entry("llama_1b", lambda _: llama_1b(), "tokens", 1, 4096, 2, 64, lambda _: Llama(SMALL_LLAMA)),
    Entry("t5_small", lambda _: t5_small(), "two sequences", 32, 512, 2, 64),
    Entry("lstm_classifier", lambda _: lstm_classifier(), "tokens", 64, 256, 4, 32),
    Entry("ddpm_cifar10", lambda _: ddpm_cifar10(), "images and steps", 128, 32, 2, 32),
    _images("unet", unet, 4, 512, (1, 256)),
)

ZOO: dict[str, Entry] = {entry.name: entry for entry in _ALL}
"""Every network by name."""
