"""What was published of OGC (Feng and Huang, CVPR 2021, and its benchmark script): 18 networks on a GPU.

The script trains on images that take a gradient, with dropout off and with gradients there from a step before,
and runs ``sum(output).backward()``. Its memory is the peak of the allocator less what stands before and after a
step, in MiB (2^20 bytes, printed as MB); its seconds are the mean of steps 30 to 99, not synchronised.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Published:
    """One row: the input [N, 3, S, S], memory in MiB and seconds a step, plain and with OGC."""

    batch: int
    extent: int
    plain_mib: int
    ogc_mib: int
    plain_s: float
    ogc_s: float

    @property
    def remaining(self) -> float:
        """The share of the plain memory that OGC needs."""
        return self.ogc_mib / self.plain_mib

    @property
    def overhead(self) -> float:
        """The time that OGC adds, as a share of a plain step."""
        return self.ogc_s / self.plain_s - 1


PUBLISHED = {
    "alexnet": Published(1024, 224, 4955, 3287, 0.388, 0.519),
    "vgg11": Published(64, 224, 3577, 2781, 0.266, 0.356),
    "vgg13": Published(64, 224, 5136, 3565, 0.418, 0.558),
    "vgg16": Published(64, 224, 5136, 3565, 0.503, 0.666),
    "vgg19": Published(64, 224, 5189, 3565, 0.581, 0.774),
    "resnet18": Published(256, 224, 5635, 3677, 0.422, 0.548),
    "resnet34": Published(128, 224, 4079, 1838, 0.364, 0.493),
    "resnet50": Published(64, 224, 5323, 1973, 0.394, 0.516),
    "resnet101": Published(32, 224, 3934, 1024, 0.356, 0.482),
    "resnet152": Published(16, 224, 2767, 526, 0.241, 0.331),
    "densenet121": Published(32, 224, 4027, 898, 0.218, 0.292),
    "densenet161": Published(16, 224, 3751, 666, 0.252, 0.341),
    "densenet169": Published(32, 224, 4862, 897, 0.270, 0.357),
    "densenet201": Published(16, 224, 3146, 474, 0.200, 0.306),
    "inception_v3": Published(32, 300, 3074, 881, 0.291, 0.374),
    "nasnet_cifar10": Published(64, 32, 5832, 1129, 0.408, 0.535),
    "amoebanet_cifar10": Published(64, 32, 4944, 1058, 0.331, 0.450),
    "darts_cifar10": Published(64, 32, 5627, 1115, 0.318, 0.494),
}
"""Rows of the table by the name of the network."""


def published_at(name: str, described: str | None) -> Published | None:
    """The row of a network where its inputs, ``64x3x224x224``, are of the published size; None where they are not."""
    published = PUBLISHED.get(name)
    if published is None or described != f"{published.batch}x3x{published.extent}x{published.extent}":
        return None
    return published
