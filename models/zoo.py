"""The registry of the zoo: how to build each network and what to feed it.

The first 18 come with the batches and extents at which OGC was published (Feng and Huang, CVPR 2021), where
Inception-v3 has images of 300 x 300 and no auxiliary classifier. Those of ``resnet8_v2_cifar10`` to 26, one to four
blocks a stage, are taken from the benchmark of the gradient-checkpointing package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from models.descriptions import AMOEBANET_A, DARTS, DENSENET, NASNET_A, RESNET, VGG_DEPTHS
from models.networks.alexnet import AlexNet
from models.networks.bert import Bert
from models.networks.cifar_resnet import CifarResNet, CifarResNetV2
from models.networks.convnext import ConvNeXt
from models.networks.densenet import DenseNet
from models.networks.gpt2 import GPT2
from models.networks.inception import Inception
from models.networks.llama import Llama, LlamaConfig
from models.networks.lstm import LSTMClassifier
from models.networks.resnet import BasicBlock, Bottleneck, ResNet
from models.networks.searched_cells import SearchedNetwork
from models.networks.t5 import T5
from models.networks.unet import UNet
from models.networks.vgg import VGG
from models.networks.vit import VisionTransformer

Takes = Literal["images", "tokens", "two sequences"]
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

        Images [N, 3, S, S]; token ids [N, T], of two sequences for an encoder with a decoder.
        """
        if self.takes_tokens:
            ids = torch.zeros(batch, extent, dtype=torch.int64)
            return (ids,) if self.takes == "tokens" else (ids, ids.clone())
        return (torch.zeros(batch, 3, extent, extent),)

    def describe(self, batch: int, extent: int) -> str:
        """The inputs as text: ``64x3x224x224``, ``8x1024`` or ``8x512, 8x512``."""
        with torch.device("meta"):
            return ", ".join("x".join(map(str, tensor.shape)) for tensor in self.inputs(batch, extent))


def _images(name: str, build: Callable[[], nn.Module], batch: int, extent: int, small: tuple[int, int]) -> Entry:
    """A network whose weights do not depend on the extent; ``small`` is a batch and an extent."""
    return Entry(name, lambda _: build(), "images", batch, extent, *small)


def _resnet(layers: int, batch: int, small: tuple[int, int]) -> Entry:
    build = partial(ResNet, RESNET[layers], block=Bottleneck if layers >= 50 else BasicBlock)
    return _images(f"resnet{layers}", build, batch, 224, small)


def _densenet(layers: int, batch: int) -> Entry:
    growth, channels = (48, 96) if layers == 161 else (32, 64)
    return _images(f"densenet{layers}", partial(DenseNet, DENSENET[layers], growth, channels), batch, 224, (2, 128))


_ALL = (
    _images("alexnet", AlexNet, 1024, 224, (8, 224)),
    *(_images(f"vgg{layers}", partial(VGG, VGG_DEPTHS[layers]), 64, 224, (2, 64)) for layers in (11, 13, 16, 19)),
    _resnet(18, 256, (4, 224)),
    _resnet(34, 128, (4, 224)),
    _resnet(50, 64, (4, 224)),
    _resnet(101, 32, (2, 224)),
    _resnet(152, 16, (2, 128)),
    _densenet(121, 32),
    _densenet(161, 16),
    _densenet(169, 32),
    _densenet(201, 16),
    _images("inception_v3", Inception, 32, 300, (2, 139)),
    _images("nasnet_cifar10", partial(SearchedNetwork, NASNET_A), 64, 32, (2, 32)),
    _images("amoebanet_cifar10", partial(SearchedNetwork, AMOEBANET_A), 64, 32, (2, 32)),
    _images("darts_cifar10", partial(SearchedNetwork, DARTS), 64, 32, (2, 32)),
    _images("vgg16_two_classes", partial(VGG, VGG_DEPTHS[16], 2), 64, 224, (2, 64)),
    _images("resnet110_cifar10", partial(CifarResNet, 110), 64, 32, (4, 32)),
    *(
        _images(f"resnet{layers}_v2_cifar10", partial(CifarResNetV2, layers), 1280, 32, (16, 32))
        for layers in (8, 14, 20, 26)
    ),
    _images("convnext_t", ConvNeXt, 64, 224, (2, 96)),
    Entry("vit_b16", VisionTransformer, "images", 64, 224, 2, 224),
    Entry(
        "vit_l16", partial(VisionTransformer, width=1024, layers=24, heads=16, hidden=4096), "images", 32, 224, 1, 96
    ),
    Entry("gpt2", lambda _: GPT2(), "tokens", 8, 1024, 1, 512),
    Entry("bert_base", lambda _: Bert(), "tokens", 32, 512, 2, 64),
    Entry("llama_1b", lambda _: Llama(), "tokens", 1, 4096, 2, 64, lambda _: Llama(SMALL_LLAMA)),
    Entry("t5_small", lambda _: T5(), "two sequences", 32, 512, 2, 64),
    Entry("lstm_classifier", lambda _: LSTMClassifier(), "tokens", 64, 256, 4, 32),
    _images("unet", UNet, 4, 512, (1, 256)),
)

ZOO: dict[str, Entry] = {entry.name: entry for entry in _ALL}
"""Every network by name."""
