"""What a tutorial trains, and the ways of training it that are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from ogc_plan.adapters.pytorch import within_budget
from torch import Tensor, nn

from models.alternatives.methods import Chain, Method, sequential
from models.training.cases import Supervised

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


def in_segments(chain: Callable[[nn.Module], nn.Sequential], *, reentrant: bool = False) -> Method:
    """`checkpoint_sequential` on the network of a `Supervised`, whose parts ``chain`` gives."""
    return sequential(lambda module: [Chain(module.network, chain(module.network), SEGMENTS)], reentrant=reentrant)


def trainable(recipe: Recipe, way: Way, example: tuple[Tensor, Tensor], *, seed: int) -> Supervised:
    """The network from the weights of ``seed``, to be trained one way.

    ``example`` is a batch of images and labels. Raises what `within_budget` raises.
    """
    torch.manual_seed(seed)
    module = Supervised(recipe.build(recipe.classes)).train()
    if way == "planned":
        planned = within_budget(module, example, budget=recipe.budget)
        assert isinstance(planned, Supervised)
        return planned
    if way == "checkpoint_sequential":
        assert recipe.chain is not None
        in_segments(recipe.chain)(module)
    return module
