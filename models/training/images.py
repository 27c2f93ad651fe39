"""Images to train on: generated from a seed with a signal to learn, or a folder with one sub-folder per class.

A generated image of class k is noise with a grating of the class's orientation and colour in it, at a random phase
and strength, so that no two images are equal and none can be learnt by heart alone. Every image is a function of the
seed and its number. Training and held-out images have different numbers, or are different files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from ogc_plan.planner.errors import UsageError
from torch import Tensor

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")
HELD_OUT_FROM = 2**31
HELD_OUT_SHARE = 5
"""One file of a class in so many is held out."""
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

    def batch(self, positions: Sequence[int], device: str) -> tuple[Tensor, Tensor]:
        """Images [N, 3, size, size] and labels [N] on a device."""
        images = torch.stack([self.draw(position) for position in positions])
        return images.to(device), torch.tensor([self.labels[position] for position in positions]).to(device)


@dataclass(frozen=True, slots=True)
class Images:
    """What is trained on and what accuracy is measured on; ``source`` is both in words."""

    classes: int
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
    return Images(classes, images(0, count), images(HELD_OUT_FROM, held_out), source)


def in_folder(folder: Path, size: int) -> Images:
    """The images in the sub-folders of ``folder``, one class each; of every class one file in five is held out.

    Scaled until the shorter side is ``size``, cut to the middle square, in [-1, 1]. Raises UsageError.
    """
    if not folder.is_dir():
        raise UsageError(f"--images {folder} is no folder", remedy="name a folder with one sub-folder per class")
    names = sorted(child.name for child in folder.iterdir() if child.is_dir())
    if len(names) < 2:
        raise UsageError(
            f"--images {folder} has {len(names)} sub-folders, and one per class is needed",
            remedy="put the images of each class into a sub-folder of its own",
        )
    kept: list[tuple[Path, int]] = []
    held_out: list[tuple[Path, int]] = []
    for label, name in enumerate(names):
        files = sorted(path for path in (folder / name).iterdir() if path.suffix.lower() in SUFFIXES)
        if len(files) < 2:
            raise UsageError(
                f"--images {folder}: class {name} has {len(files)} images, and two are the least",
                remedy=f"add files ending in {', '.join(SUFFIXES)}",
            )
        for number, path in enumerate(files):
            (kept if number % HELD_OUT_SHARE else held_out).append((path, label))
    pillow = _pillow()

    def files_of(listed: list[tuple[Path, int]]) -> ImageSet:
        return ImageSet(tuple(label for _, label in listed), lambda at: _read(pillow, listed[at][0], size))

    source = f"{len(kept):,} images of {len(names)} classes from a folder and {len(held_out):,} others held out"
    return Images(len(names), files_of(kept), files_of(held_out), source)


def _pillow() -> Any:
    try:
        return import_module("PIL.Image")
    except ImportError as error:
        raise UsageError(
            "reading images of a folder needs Pillow, which is not installed",
            remedy="pip install pillow, or leave --images out to train on generated images",
        ) from error


def _read(pillow: Any, path: Path, size: int) -> Tensor:
    try:
        with pillow.open(path) as opened:
            picture = opened.convert("RGB")
    except (OSError, SyntaxError) as error:
        raise UsageError(f"{path} cannot be read as an image: {error}", remedy="remove it from the folder") from error
    scale = size / min(picture.size)
    wide, high = (max(size, round(side * scale)) for side in picture.size)
    left, top = (wide - size) // 2, (high - size) // 2
    cut = picture.resize((wide, high)).crop((left, top, left + size, top + size))
    pixels = torch.frombuffer(bytearray(cut.tobytes()), dtype=torch.uint8).reshape(size, size, 3)
    return pixels.permute(2, 0, 1).float() / 127.5 - 1
