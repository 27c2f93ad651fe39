r"""Train VGG16 with two classes: plain, by checkpoint_sequential as its tutorial does, and within a budget.

    python -m models.training.train_vgg16
    python -m models.training.train_vgg16 --batch 8 --size 32 --epochs 2 --images-per-epoch 64 --rate 0.01 \
        -o models/results/train_vgg16.json

Dropout .5, batch 64, images of 224 x 224, SGD of rate .001 and momentum .9, 10 epochs, as the tutorial, whose images
are not included: two classes are generated from the seed. Weights start at random, convolutions
by He et al., ICCV 2015. The memory of one step at the tutorial's own size is counted in any case, on tensors without
memory.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torch import nn

from models.descriptions import VGG_DEPTHS
from models.networks.vgg import VGG
from models.training.recipe import Recipe
from models.training.run import run
from models.training.vgg16_memory import Held, memory_section

HEAD_DEVIATION = 0.01


def started(network: VGG) -> VGG:
    """The network with weights that let 16 layers without norms learn; torch's own let the signal die out."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0, HEAD_DEVIATION)
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return network


def parts(network: nn.Module) -> nn.Sequential:
    """What the tutorial hands to checkpoint_sequential: the network's children, the trunk as one of them."""
    assert isinstance(network, VGG)
    return nn.Sequential(network.features, network.pool, nn.Flatten(), network.classifier)


VGG16 = Recipe(
    name="vgg16",
    script="models.training.train_vgg16",
    build=lambda classes: started(VGG(VGG_DEPTHS[16], classes)),
    classes=2,
    batch=64,
    size=224,
    epochs=10,
    images_per_epoch=2560,
    learning_rate=0.001,
    momentum=0.9,
    weight_decay=0.0,
    budget="60%",
    published="Published, 10 epochs at batch 64 of 224x224: accuracy 79 plain and with checkpoint_sequential.",
    least_size=32,
    chain=parts,
)


def memory() -> tuple[str, list[Held]]:
    """One step at the tutorial's batch and size, whatever was trained here."""
    return memory_section(VGG16, parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line asks."""
    return run(VGG16, __doc__, arguments, section=memory)


if __name__ == "__main__":
    sys.exit(main())
