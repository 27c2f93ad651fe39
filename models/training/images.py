"""Images to train on, generated from a seed with a signal to learn.

A generated image of class k is noise with a grating of the class's orientation and colour in it, at a random phase
and strength, so that no two images are equal and none can be learnt by heart alone. Every image is a function of the
seed and its number. Training and held-out images have different numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

HELD_OUT_FROM = 2**31
PERIOD = 8.0
"""Of the gratings, in pixels."""
NOISE = 0.3
"""Standard deviation of what is added to every pixel, where a grating goes from 0 to between 1 and 3."""


@dataclass(frozen=True, slots=True)
class ImageSet:
    """Images with labels: ``draw`` makes the image at a position, float32 [3, size, size]."""

    labels: tuple[int, ...]
    draw: Callable[[int], Tensor]

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Images [N, 3, size, size] and labels [N]."""
        images = torch.stack([self.draw(position) for position in positions])
        return images, torch.tensor([self.labels[position] for position in positions])


@dataclass(frozen=True, slots=True)
class Images:
    """What is trained on and what accuracy is measured on; ``source`` is both in words."""

    train: ImageSet
    held_out: ImageSet
    source: str


def _drawn(*numbers: int) -> torch.Generator:
    seed = 0
    for number in numbers:
        seed = (seed * 6364136223846793005 + number + 1442695040888963407) % 2**63
    return torch.Generator().manual_seed(seed)


def generated(classes: int, count: int, held_out: int, size: int, seed: int) -> Images:
    """``count`` images to train on and ``held_out`` others, of ``classes`` classes in turn."""
    colours = torch.nn.functional.normalize(torch.randn(classes, 3, generator=_drawn(seed)), dim=1)
    across = torch.arange(size, dtype=torch.float32)

    def image(number: int, label: int) -> Tensor:
        source = _drawn(seed, number)
        phase, strength = torch.rand(2, generator=source).tolist()
        angle = math.pi * label / classes
        waves = (math.cos(angle) * across[None, :] + math.sin(angle) * across[:, None]) / PERIOD + phase
        grating = (1 + torch.sin(2 * math.pi * waves)) * (0.5 + strength)
        return colours[label, :, None, None] * grating + NOISE * torch.randn(3, size, size, generator=source)

    def images(first: int, size_of_set: int) -> ImageSet:
        labels = tuple(position % classes for position in range(size_of_set))
        return ImageSet(labels, lambda position: image(first + position, labels[position]))

    source = f"{count:,} images of {classes} classes generated from seed {seed} and {held_out:,} others held out"
    return Images(images(0, count), images(HELD_OUT_FROM, held_out), source)
