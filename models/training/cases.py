"""Three networks to train on a small machine, the loss inside the module, as the executor's proving ground.

The default sizes fit a step of a quarter to half a second on two CPU cores: ResNet-50 at batch 8, 128x128
(232 MB of activations, 102 MB of parameters), a 12-layer GPT of width 192 at 2 x 256 tokens (203 MB, 22 MB),
a U-Net at batch 2, 192x192 (112 MB, 8 MB). ResNet-50 has batch norm and in-place ReLUs, the GPT has dropout
in every place and a tied head, the U-Net has group norm, long skips and concatenations. Each case also names
its blocks, for the methods of `models.alternatives` that checkpoint blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.alternatives.methods import Block
from models.networks.gpt2 import GPT2, GPT2Config
from models.networks.resnet import ResNet
from models.networks.unet import UNet

CLASSES = 1000
UNET_CLASSES = 4
GPT = GPT2Config(vocabulary=512, context=256, layers=12, heads=6, width=192, dropout=0.1)


class Supervised(nn.Module):
    """A network with its loss: cross entropy of the scores against integer targets, averaged.

    ``classes_last`` says that the scores are [..., classes]; otherwise they are [N, classes, ...].
    """

    def __init__(self, network: nn.Module, *, classes_last: bool = False) -> None:
        super().__init__()
        self.network = network
        self.classes_last = classes_last

    def loss(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Scores and targets -> scalar."""
        if self.classes_last:
            return F.cross_entropy(scores.flatten(0, -2), targets.flatten())
        return F.cross_entropy(scores, targets)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Inputs of the network and targets -> scalar loss."""
        return self.loss(self.network(inputs), targets)


class Stage(nn.Module):
    """A bound method as a module without parameters of its own, to stand in a Sequential."""

    def __init__(self, run: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        """Whatever the method does."""
        return self.run(x)


@dataclass(frozen=True, slots=True)
class Case:
    """A module in training mode, its inputs, and its block structure.

    ``build`` draws weights from torch's default generator. ``inputs`` takes a seed: equal seeds give equal
    tensors, on the CPU; floating inputs do not require a gradient yet. ``sequential`` gives the network
    without its loss as one chain over the same parameters; None where it is no chain. ``onednn`` says whether it
    is to run with oneDNN on.
    """

    name: str
    sizes: str
    build: Callable[[], Supervised]
    inputs: Callable[[int], tuple[Tensor, ...]]
    blocks: Callable[[Supervised], list[Block]] = lambda _: []
    sequential: Callable[[Supervised], nn.Sequential] | None = None
    onednn: bool = True

    def arguments(self, seed: int, device: str | torch.device = "cpu") -> tuple[Tensor, ...]:
        """The inputs on a device, the floating ones requiring a gradient."""
        moved = (tensor.to(device) for tensor in self.inputs(seed))
        return tuple(tensor.requires_grad_(tensor.is_floating_point()) for tensor in moved)


def _drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images_case(
    name: str, sizes: str, network: Callable[[], nn.Module], batch: int, side: int, classes: int, **structure: Any
) -> Case:
    """A classifier of square images; ``sizes`` describes the network, without batch, side and classes."""

    def inputs(seed: int) -> tuple[Tensor, ...]:
        drawn = _drawn(seed)
        images = torch.randn(batch, 3, side, side, generator=drawn)
        return images, torch.randint(classes, (batch,), generator=drawn)

    told = f"batch {batch}, {side}x{side}, {sizes}, {classes} classes"
    return Case(name, told, lambda: Supervised(network()).train(), inputs, **structure)


def next_token_case(
    name: str, sizes: str, network: Callable[[], nn.Module], batch: int, length: int, vocabulary: int, **structure: Any
) -> Case:
    """A decoder that predicts the next token; ``sizes`` describes the network, without batch and length."""

    def inputs(seed: int) -> tuple[Tensor, ...]:
        ids = torch.randint(vocabulary, (batch, length + 1), generator=_drawn(seed))
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def build() -> Supervised:
        return Supervised(network(), classes_last=True).train()

    return Case(name, f"batch {batch}, {length} tokens, {sizes}", build, inputs, **structure)


def resnet_case(batch: int = 8, side: int = 128, depths: tuple[int, int, int, int] = (3, 4, 6, 3)) -> Case:
    """ResNet-50 by default; ``side`` in pixels."""

    def bottlenecks(network: ResNet) -> list[nn.Module]:
        return [block for stage in network.stages for block in cast(nn.Sequential, stage)]

    def blocks(module: Supervised) -> list[Block]:
        network = cast(ResNet, module.network)
        return [Block(network, "stem"), *(Block(block) for block in bottlenecks(network))]

    def sequential(module: Supervised) -> nn.Sequential:
        network = cast(ResNet, module.network)
        return nn.Sequential(Stage(network.stem), *bottlenecks(network), Stage(network.classify))

    sizes = f"stages of {'-'.join(map(str, depths))} blocks"
    structure = {"blocks": blocks, "sequential": sequential}
    return images_case("resnet50", sizes, lambda: ResNet(depths, CLASSES), batch, side, CLASSES, **structure)


def gpt_case(batch: int = 2, config: GPT2Config = GPT) -> Case:
    """A 12-layer GPT by default, dropout on embeddings, attention weights and both residual branches."""

    def blocks(module: Supervised) -> list[Block]:
        return [Block(block) for block in cast(GPT2, module.network).blocks]

    def sequential(module: Supervised) -> nn.Sequential:
        network = cast(GPT2, module.network)
        return nn.Sequential(Stage(network.embed), *network.blocks, Stage(network.logits))

    sizes = (
        f"{config.layers} layers, width {config.width}, {config.heads} heads, vocabulary {config.vocabulary}, "
        f"dropout {config.dropout}"
    )
    structure = {"blocks": blocks, "sequential": sequential}
    return next_token_case("gpt", sizes, lambda: GPT2(config), batch, config.context, config.vocabulary, **structure)


def unet_case(batch: int = 2, side: int = 192, widths: tuple[int, ...] = (16, 32, 64, 128, 256)) -> Case:
    """A U-Net with group norm; ``side`` in pixels, a multiple of 2 ** (len(widths) - 1)."""

    def inputs(seed: int) -> tuple[Tensor, ...]:
        drawn = _drawn(seed)
        images = torch.randn(batch, 3, side, side, generator=drawn)
        return images, torch.randint(UNET_CLASSES, (batch, side, side), generator=drawn)

    def blocks(module: Supervised) -> list[Block]:
        network = cast(UNet, module.network)
        return [Block(network, "descend"), Block(network, "ascend")]

    def build() -> Supervised:
        return Supervised(UNet(UNET_CLASSES, widths, norm="group")).train()

    sizes = f"batch {batch}, {side}x{side}, widths {'-'.join(map(str, widths))}, {UNET_CLASSES} classes"
    return Case("unet", sizes, build, inputs, blocks)


CASES = {case.name: case for case in (resnet_case(), gpt_case(), unet_case())}
