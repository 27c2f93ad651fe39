"""Six kinds of networks, small enough that Inductor's C++ compiles on two CPU cores in less than a minute."""

from __future__ import annotations

from typing import Any

from models.alternatives.methods import Block
from models.fidelity.network_cases import llama_case, t5_case
from models.networks.cifar_resnet import CifarResNet
from models.networks.gpt2 import GPT2Config
from models.networks.llama import LlamaConfig
from models.networks.t5 import T5, T5Config
from models.networks.unet import UNet
from models.networks.vit import VisionTransformer
from models.training.cases import Case, Supervised, gpt_case, images_case, unet_case

_ALL = (
    gpt_case(8, GPT2Config(vocabulary=256, context=64, layers=2, heads=4, width=64, dropout=0.1)),
    unet_case(2, 48, (8, 16)),
    images_case(
        "vit", "patches of 8, 2 layers, width 64", lambda: VisionTransformer(48, 8, 64, 2, 4, 256, 10), 8, 48, 10
    ),
    llama_case(LlamaConfig(vocabulary=256, layers=2, heads=4, groups=2, width=64, hidden=192), 4, 64),
    t5_case(T5Config(vocabulary=256, layers=1, heads=4, size=16, width=64, hidden=256), 4, 64, 48),
    images_case("resnet14", "as for CIFAR-10", lambda: CifarResNet(14), 16, 32, 10),
)

NETWORKS: dict[str, Case] = {case.name: case for case in _ALL}
"""Every case by name."""


def blocks(module: Supervised) -> list[Block]:
    """What checkpoints are put around."""
    network: Any = module.network
    if isinstance(network, UNet):
        return [Block(network, "descend"), Block(network, "ascend")]
    layers = [*network.encoder.layers, *network.decoder.layers] if isinstance(network, T5) else network.blocks
    return [Block(layer) for layer in layers]
