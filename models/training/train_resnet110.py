r"""Train ResNet-110 on images of 32 x 32, plain and within a budget: same curves, same bits, less memory.

    python -m models.training.train_resnet110
    python -m models.training.train_resnet110 --batch 16 --images-per-epoch 160 --rate 0.003 \
        -o models/results/train_resnet110.json

Batch 64 and two epochs, as OGC's own tutorial trains it on CIFAR-10, whose images are not included: ten classes are
generated from the seed. The rate is the 0.01 at which He et al., CVPR 2016, start this depth.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from models.networks.cifar_resnet import CifarResNet
from models.training.recipe import Recipe
from models.training.run import run

RESNET110 = Recipe(
    name="resnet110",
    script="models.training.train_resnet110",
    build=lambda classes: CifarResNet(110, classes),
    classes=10,
    batch=64,
    size=32,
    epochs=2,
    images_per_epoch=2560,
    learning_rate=0.01,
    momentum=0.9,
    weight_decay=1e-4,
    budget="30%",
    published="Published of OGC on CIFAR-10, batch 64, 2 epochs: loss 1.483, then 1.169.",
    least_size=8,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line asks."""
    return run(RESNET110, __doc__, arguments)


if __name__ == "__main__":
    sys.exit(main())
