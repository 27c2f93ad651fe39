"""What the stress run binds: a network of a library, built small with random weights, and one batch for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

BATCH, LENGTH, VOCABULARY = 2, 24, 128
Inputs = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One network: ``build(library)`` makes it, ``inputs()`` its keyword arguments, the same ones on every call."""

    name: str
    kind: str
    library: str
    build: Callable[[Any], nn.Module]
    inputs: Callable[[], dict[str, Any]]

    def make(self) -> tuple[nn.Module, dict[str, Any]]:
        """The network in training mode with the same weights each time, and its inputs."""
        torch.manual_seed(1)
        return self.build(import_module(self.library)).train(), self.inputs()


@dataclass(frozen=True, slots=True)
class Group:
    """Networks of ``transformers`` of one kind: the configuration they share and how they are fed."""

    kind: str
    shared: Mapping[str, Any]
    inputs: Callable[[], dict[str, Any]]
    head: str = ""
    made: list[Case] = field(default_factory=list)

    def add(
        self,
        name: str,
        model: str,
        config: str = "",
        *,
        inputs: Callable[[], dict[str, Any]] | None = None,
        without: tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        """A network ``model`` (the group's head is appended to it), with its configuration's ``options``."""
        merged = {key: value for key, value in self.shared.items() if key not in without} | options
        config = config or re.sub(r"For[A-Z].*$|Model$|LMHeadModel$", "", model + self.head) + "Config"

        def build(library: Any) -> nn.Module:
            made: nn.Module = getattr(library, model + self.head)(getattr(library, config)(**merged))
            return made

        self.made.append(Case(name, self.kind, "transformers", build, inputs or self.inputs))


def drawn(*shape: int, seed: int = 3) -> Tensor:
    """Normal numbers that do not depend on the global generator."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tokens(length: int = LENGTH, *, batch: int = BATCH, seed: int = 3) -> Tensor:
    """Token ids [batch, length], none of them a special one."""
    return torch.randint(5, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def padding(length: int = LENGTH, *, batch: int = BATCH) -> Tensor:
    """An attention mask [batch, length] whose last row is padded by a quarter."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length - length // 4 :] = 0
    return mask


def classes(count: int = 2, *, batch: int = BATCH) -> Tensor:
    """Labels [batch] of a classifier."""
    return torch.arange(batch) % count


def images(side: int, *, channels: int = 3, batch: int = BATCH) -> Tensor:
    """Images [batch, channels, side, side]."""
    return drawn(batch, channels, side, side)
