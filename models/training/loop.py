"""Epochs of training: losses, accuracy on held-out images, the memory of a step, the state at the end.

The order of images is a function of seed and epoch.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from models.meters.step_meters import StepPeak, by_storages
from models.training.images import Images, ImageSet
from models.training.outcome import random_state


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch: the loss of every step, the share of held-out images classified correctly, bytes, seconds.

    ``total_nbytes`` is the peak of the epoch's first step. ``activation_nbytes`` leaves out parameters, momentum,
    buffers, images and finished gradients. The seconds leave out the held-out images.
    """

    losses: tuple[float, ...]
    accuracy: float
    total_nbytes: int
    activation_nbytes: int
    seconds: float

    @property
    def loss(self) -> float:
        """The mean over the steps."""
        return sum(self.losses) / len(self.losses)


@dataclass(frozen=True, slots=True)
class Run:
    """What one way of training left behind; ``digests`` are of the state after the last epoch."""

    epochs: tuple[Epoch, ...]
    digests: dict[str, str]


@dataclass(frozen=True, slots=True)
class Course:
    """How long and how to train: ``epochs`` of at most ``images_per_epoch`` images in whole batches."""

    epochs: int
    batch: int
    images_per_epoch: int
    seed: int = 0

    def steps(self, images: ImageSet) -> int:
        """Steps an epoch; images that fill no batch are left out."""
        return min(self.images_per_epoch, len(images)) // self.batch

    def order(self, images: ImageSet, epoch: int) -> Iterator[list[int]]:
        """The positions of each batch of an epoch, other ones in every epoch."""
        drawn = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        shuffled = torch.randperm(len(images), generator=drawn).tolist()
        for step in range(self.steps(images)):
            yield shuffled[step * self.batch : (step + 1) * self.batch]


Tell = Callable[[str], None]
"""Is told how it stands in words."""


def train(module: nn.Module, optimizer: torch.optim.Optimizer, images: Images, course: Course, tell: Tell) -> Run:
    """Train to the end of ``course``."""
    torch.manual_seed(course.seed + 1)  # what planning drew does not matter
    epochs = tuple(_epoch(module, optimizer, images, course, number, tell) for number in range(course.epochs))
    return Run(epochs, digests(module, optimizer))


def _epoch(
    module: nn.Module, optimizer: torch.optim.Optimizer, images: Images, course: Course, number: int, tell: Tell
) -> Epoch:
    module.train()
    losses: list[float] = []
    peak: StepPeak | None = None
    started = time.perf_counter()
    for positions in course.order(images.train, number):
        batch = images.train.batch(positions)
        optimizer.zero_grad(set_to_none=True)
        if peak is None:
            peak = by_storages(partial(_step, module, batch, losses), module, batch)
        else:
            _step(module, batch, losses)
        optimizer.step()
    seconds = time.perf_counter() - started
    assert peak is not None
    right = accuracy(module, images.held_out, course)
    tell(f"epoch {number + 1} of {course.epochs}, loss {losses[-1]:.3f}, accuracy {right:.1%}")
    total = peak.total_nbytes + momentum_nbytes(optimizer)
    return Epoch(tuple(losses), right, total, peak.activation_nbytes, seconds)


def _step(module: nn.Module, batch: tuple[Tensor, Tensor], losses: list[float]) -> Tensor:
    loss = module(*batch)
    loss.backward()
    losses.append(loss.item())
    return loss


def momentum_nbytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of what the optimizer keeps for each parameter."""
    kept = (value for state in optimizer.state.values() for value in state.values())
    return sum(value.untyped_storage().nbytes() for value in kept if isinstance(value, Tensor))


@torch.no_grad()
def accuracy(module: nn.Module, images: ImageSet, course: Course) -> float:
    """The share of images whose greatest score is that of their label, dropout off."""
    module.eval()
    right = 0
    for first in range(0, len(images), course.batch):
        positions = range(first, min(first + course.batch, len(images)))
        inputs, labels = images.batch(positions)
        right += int((module.network(inputs).argmax(1) == labels).sum())
    module.train()
    return right / len(images)


def digests(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """A digest of every bit of parameters, buffers, momentum and the generators."""
    momentum = (
        (f"{group}.{at}", optimizer.state[parameter].get("momentum_buffer"))
        for group, held in enumerate(optimizer.param_groups)
        for at, parameter in enumerate(held["params"])
    )
    return {
        "parameters": _digest(module.named_parameters()),
        "buffers": _digest(module.named_buffers()),
        "momentum": _digest(momentum),
        "generators": _digest(random_state().items()),
    }


def _digest(named: Iterable[tuple[str, Tensor | None]]) -> str:
    found = hashlib.sha256()
    for name, tensor in named:
        found.update(name.encode())
        if tensor is not None:
            found.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            found.update(flat.view(torch.uint8).numpy().data)
    return found.hexdigest()
