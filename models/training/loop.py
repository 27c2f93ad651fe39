"""Epochs of training: losses, accuracy on held-out images, the memory of a step, the state at the end.

The order of images is a function of seed and epoch.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.meters.step_meters import CudaPeak, by_cuda, by_storages
from models.training.images import Images, ImageSet
from models.training.outcome import random_state


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch: the loss of every step, the share of held-out images classified correctly, bytes, seconds.

    ``total_nbytes`` is the peak of the epoch's first step. ``activation_nbytes`` leaves out parameters, momentum,
    buffers, images and finished gradients; it is None on CUDA, whose allocator cannot tell them apart.
    ``reserved_nbytes`` is what that allocator took from the device. The seconds leave out the held-out images.
    """

    losses: tuple[float, ...]
    accuracy: float
    total_nbytes: int
    activation_nbytes: int | None
    reserved_nbytes: int | None
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
    seed: int
    device: str

    def steps(self, images: ImageSet) -> int:
        """Steps an epoch; images that fill no batch are left out."""
        return min(self.images_per_epoch, len(images)) // self.batch

    def order(self, images: ImageSet, epoch: int) -> Iterator[list[int]]:
        """The positions of each batch of an epoch, other ones in every epoch."""
        drawn = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        shuffled = torch.randperm(len(images), generator=drawn).tolist()
        for step in range(self.steps(images)):
            yield shuffled[step * self.batch : (step + 1) * self.batch]


Tell = Callable[[int, str], None]
"""Is told how many steps are done, and how it stands in words."""


def train(module: nn.Module, optimizer: torch.optim.Optimizer, images: Images, course: Course, tell: Tell) -> Run:
    """Train to the end of ``course``."""
    torch.manual_seed(course.seed + 1)  # what planning drew does not matter
    epochs = tuple(_epoch(module, optimizer, images, course, number, tell) for number in range(course.epochs))
    return Run(epochs, digests(module, optimizer))


def _epoch(
    module: nn.Module, optimizer: torch.optim.Optimizer, images: Images, course: Course, number: int, tell: Tell
) -> Epoch:
    module.train()
    steps = course.steps(images.train)
    losses: list[float] = []
    peak: tuple[int, int | None, int | None] | None = None
    started = time.perf_counter()
    for at, positions in enumerate(course.order(images.train, number)):
        batch = images.train.batch(positions, course.device)
        optimizer.zero_grad(set_to_none=True)
        if peak is None:
            peak = _metered(module, batch, losses)
        else:
            _step(module, batch, losses)
        optimizer.step()
        tell(number * steps + at + 1, f"epoch {number + 1} of {course.epochs}, loss {losses[-1]:.3f}")
    seconds = time.perf_counter() - started
    assert peak is not None
    total, activations, reserved = peak
    right = accuracy(module, images.held_out, course)
    return Epoch(tuple(losses), right, total + momentum_nbytes(optimizer), activations, reserved, seconds)


def _step(module: nn.Module, batch: tuple[Tensor, Tensor], losses: list[float]) -> Tensor:
    loss = module(*batch)
    loss.backward()
    losses.append(loss.item())
    return loss


def _metered(
    module: nn.Module, batch: tuple[Tensor, Tensor], losses: list[float]
) -> tuple[int, int | None, int | None]:
    """A step under the meter of its device: total, activation and reserved bytes, momentum left out."""
    meter = by_cuda if batch[0].is_cuda else by_storages
    found = meter(lambda: _step(module, batch, losses), module, batch)
    if isinstance(found, CudaPeak):
        return found.allocated_nbytes, None, found.reserved_nbytes
    return found.total_nbytes, found.activation_nbytes, None


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
        inputs, labels = images.batch(positions, course.device)
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
