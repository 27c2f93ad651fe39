"""What a tutorial trains, and the ways of training it that are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from ogc_plan.adapters.pytorch import within_budget
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint_sequential

from models.training.cases import Supervised

PLAIN, SEQUENTIAL, PLANNED = "plain", "checkpoint_sequential", "planned"
Way = Literal["plain", "checkpoint_sequential", "planned"]
SEGMENTS = 2


@dataclass(frozen=True, slots=True)
class Recipe:
    """A network and how the tutorial trains it: stochastic gradient descent with momentum at one rate.

    ``build`` takes a number of classes and draws weights from torch's default generator. ``chain`` gives what the
    tutorial hands to `checkpoint_sequential`; None where it does not use it. ``size`` is the side of an image in
    pixels, ``least_size`` the smallest that the network takes. ``published`` is what was reported of it.
    """

    name: str
    script: str
    build: Callable[[int], nn.Module]
    classes: int
    batch: int
    size: int
    epochs: int
    images_per_epoch: int
    learning_rate: float
    momentum: float
    weight_decay: float
    budget: str
    published: str
    least_size: int
    chain: Callable[[nn.Module], nn.Sequential] | None = None

    @property
    def ways(self) -> tuple[Way, ...]:
        """The ways of training it, plain first."""
        return ("plain", "planned") if self.chain is None else ("plain", "checkpoint_sequential", "planned")


@dataclass(frozen=True, slots=True)
class Trainable:
    """A module with its loss, and the forward that a way of training calls: images and labels -> loss."""

    module: Supervised
    forward: Callable[[Tensor, Tensor], Tensor]


def sequential(module: Supervised, chain: nn.Sequential, *, reentrant: bool = False) -> Callable[..., Tensor]:
    """The forward with ``chain``, the network in parts, run by `checkpoint_sequential` in two segments."""

    def forward(images: Tensor, labels: Tensor) -> Tensor:
        scores = checkpoint_sequential(chain, SEGMENTS, images, use_reentrant=reentrant)
        return module.loss(scores, labels)

    return forward


def trainable(
    recipe: Recipe, way: Way, classes: int, example: tuple[Tensor, Tensor], *, budget: str, seed: int
) -> Trainable:
    """The network from the weights of ``seed``, on the device of ``example``, to be trained one way.

    ``example`` is a batch of images and labels. Raises what `within_budget` raises.
    """
    torch.manual_seed(seed)
    module = Supervised(recipe.build(classes)).train().to(example[0].device)
    if way == "planned":
        planned = within_budget(module, example, budget=budget)
        assert isinstance(planned, Supervised)
        return Trainable(planned, planned)
    if way == "checkpoint_sequential":
        assert recipe.chain is not None
        return Trainable(module, sequential(module, recipe.chain(module.network)))
    return Trainable(module, module)
