"""What published networks consist of: layer counts, branches and cells, read by the modules and by the ONNX graphs.

ResNet: He et al., CVPR 2016, table 1. DenseNet: Huang et al., CVPR 2017, table 1. VGG: Simonyan and Zisserman, ICLR
2015, table 1. Inception-v3: Szegedy et al., CVPR 2016, table 1, filters of the reference model. NASNet-A: Zoph et al.,
CVPR 2018, figure 4. AmoebaNet-A: Real et al., AAAI 2019, figure 5; AmoebaNet-D as its TPU model defines it. DARTS: Liu
et al., ICLR 2019, figures 4 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass

RESNET = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Layers -> blocks of each stage."""
DENSENET = {121: (6, 12, 24, 16), 161: (6, 12, 36, 24), 169: (6, 12, 32, 32), 201: (6, 12, 48, 32)}
"""Layers -> layers of each dense block."""
VGG_DEPTHS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
"""Layers -> convolutions of each stage."""
VGG_WIDTHS = (64, 128, 256, 512, 512)
DROPOUT = 0.5
"""Of VGG and Inception-v3."""

# Inception-v3: branches of layers

Extent = int | tuple[int, int]
Layer = tuple[int, Extent]
"""Channels and kernel of one convolution."""
Branches = tuple[tuple[Layer, ...], ...]

INCEPTION_EARLY: Branches = (((64, 1),), ((48, 1), (64, 5)), ((64, 1), (96, 3), (96, 3)))
INCEPTION_EARLY_POOLED = (32, 64, 64)
"""Channels behind the pooling of each early block."""
INCEPTION_MIDDLE_WIDTHS = (128, 160, 160, 192)
INCEPTION_SHRINK_EARLY: Branches = (((384, 3),), ((64, 1), (96, 3), (96, 3)))
INCEPTION_SHRINK_LATE: Branches = (((192, 1), (320, 3)), ((192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3)))


def inception_sevens(width: int) -> Branches:
    """The branches whose 7x7 convolutions are factorised."""
    wide, tall = (1, 7), (7, 1)
    return (
        ((192, 1),),
        ((width, 1), (width, wide), (192, tall)),
        ((width, 1), (width, tall), (width, wide), (width, tall), (192, wide)),
    )


# Cells found by search


@dataclass(frozen=True, slots=True)
class Wiring:
    """Pairs of (operation, index of its input) whose results are added; the cell's own inputs are 0 and 1.

    Sums are numbered on from 2; those in ``joined`` are concatenated to the output.
    """

    pairs: tuple[tuple[str, int], ...]
    joined: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Genotype:
    """The cell that keeps the extent and the one that halves it."""

    normal: Wiring
    reduction: Wiring


NASNET_A = Genotype(
    Wiring(
        (
            ("separable 5", 1), ("separable 3", 0), ("separable 5", 0), ("separable 3", 0), ("average", 1),
            ("identity", 0), ("average", 0), ("average", 0), ("separable 3", 1), ("identity", 1),
        ),
        (2, 3, 4, 5, 6),
    ),
    Wiring(
        (
            ("separable 5", 1), ("separable 7", 0), ("largest", 1), ("separable 7", 0), ("average", 1),
            ("separable 5", 0), ("identity", 3), ("average", 2), ("separable 3", 2), ("largest", 1),
        ),
        (4, 5, 6),
    ),
)  # fmt: skip
AMOEBANET_A = Genotype(
    Wiring(
        (
            ("average", 0), ("largest", 1), ("separable 3", 0), ("separable 5", 2), ("separable 3", 0),
            ("average", 3), ("separable 3", 1), ("identity", 1), ("identity", 0), ("average", 1),
        ),
        (4, 5, 6),
    ),
    Wiring(
        (
            ("average", 0), ("separable 3", 1), ("largest", 0), ("separable 7", 2), ("separable 7", 0),
            ("average", 1), ("largest", 0), ("largest", 1), ("factorised 7", 0), ("separable 3", 5),
        ),
        (3, 4, 6),
    ),
)  # fmt: skip
DARTS = Genotype(
    Wiring(
        (
            ("separable 3", 0), ("separable 3", 1), ("separable 3", 0), ("separable 3", 1),
            ("separable 3", 1), ("identity", 0), ("identity", 0), ("dilated 3", 2),
        ),
        (2, 3, 4, 5),
    ),
    Wiring(
        (
            ("largest", 0), ("largest", 1), ("identity", 2), ("largest", 1),
            ("largest", 0), ("identity", 2), ("identity", 2), ("largest", 1),
        ),
        (2, 3, 4, 5),
    ),
)  # fmt: skip
AMOEBANET_D = Genotype(
    Wiring(
        (
            ("convolution 1", 1), ("largest", 1), ("identity", 1), ("factorised 7", 0), ("convolution 1", 0),
            ("factorised 7", 0), ("largest", 2), ("identity", 2), ("average", 1), ("convolution 1", 5),
        ),
        (0, 3, 4, 6),
    ),
    Wiring(
        (
            ("largest 2", 0), ("largest", 0), ("identity", 2), ("convolution 3", 1), ("factorised 7", 2),
            ("largest", 2), ("identity", 3), ("largest 2", 1), ("average", 2), ("convolution 1", 3),
        ),
        (4, 5, 6),
    ),
)  # fmt: skip
