"""A network of a library with random weights, few layers and small widths, and one batch for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

BATCH, LENGTH, VOCABULARY = 2, 24, 128
Inputs = Callable[[], dict[str, Any]]


class Positional(nn.Module):
    """A model of a library as a module of positional tensors that returns one tensor of its output record."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], output: str) -> None:
        super().__init__()
        self.model, self.names, self.output = model, names, output

    def forward(self, *inputs: Tensor) -> Tensor:
        """The named output of the model called with keyword arguments."""
        result: Tensor = getattr(self.model(**dict(zip(self.names, inputs, strict=True))), self.output)
        return result


@dataclass(frozen=True, slots=True)
class Case:
    """One network: ``build(library)`` makes it, ``inputs()`` its keyword arguments, the same ones on every call.

    ``compared`` marks the networks whose export is compared with a real step; the others train by a plan. Of a
    compared one ``size`` gives the inputs in words and ``output`` names the tensor that the loss is made of;
    ``half`` makes parameters and floating-point inputs bfloat16; ``full_size`` says that it is only built on the
    meta device.
    """

    name: str
    kind: str
    library: str
    build: Callable[[Any], nn.Module]
    inputs: Inputs
    compared: bool = False
    size: str = ""
    output: str = ""
    half: bool = False
    full_size: bool = False

    def make(self) -> tuple[nn.Module, dict[str, Any]]:
        """The network in training mode with the same weights each time, and its inputs."""
        torch.manual_seed(1)
        return self.build(import_module(self.library)).train(), self.inputs()

    def positional(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """The network as a module of positional tensors, for a compared case, and these tensors."""
        with torch.device("meta" if self.full_size else "cpu"):
            model, named = self.make()
        module, inputs = Positional(model, tuple(named), self.output), tuple(named.values())
        if not self.half:
            return module, inputs
        floats = (tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor for tensor in inputs)
        return module.to(torch.bfloat16), tuple(floats)


@dataclass(frozen=True, slots=True)
class Feed:
    """The inputs of a compared network, the same in words, and the tensor of the output record to train on."""

    size: str
    inputs: Inputs
    output: str = "logits"


@dataclass(frozen=True, slots=True)
class Group:
    """Networks of one kind of a library: the options they share and how they are fed.

    ``larger`` are the shared options and ``fed`` the inputs of the forms that are compared with real steps.
    """

    kind: str
    shared: Mapping[str, Any]
    inputs: Inputs
    head: str = ""
    library: str = "transformers"
    larger: Mapping[str, Any] = field(default_factory=dict)
    fed: Feed | None = None
    made: list[Case] = field(default_factory=list)

    def add(
        self,
        name: str,
        model: str,
        config: str = "",
        *,
        inputs: Inputs | None = None,
        without: tuple[str, ...] = (),
        compared: Mapping[str, Any] | None = None,
        fed: Feed | None = None,
        **options: Any,
    ) -> None:
        """A network ``model`` (the group's head is appended to it), with ``options`` of its configuration.

        ``compared`` adds the larger form too, with these options on top of ``options``.
        """
        shared = {key: value for key, value in self.shared.items() if key not in without}
        build = _builder(model + self.head, config, shared | options)
        self.made.append(Case(name, self.kind, self.library, build, inputs or self.inputs))
        if compared is not None:
            larger = {key: value for key, value in self.larger.items() if key not in without}
            self.add_compared(name, model, config, fed=fed, **larger | options | compared)

    def add_compared(
        self,
        name: str,
        model: str,
        config: str = "",
        *,
        fed: Feed | None = None,
        full_size: bool = False,
        **options: Any,
    ) -> None:
        """A network that is only compared, with all ``options`` of its configuration."""
        feed = fed or self.fed
        assert feed is not None
        build = _builder(model + self.head, config, options)
        case = Case(name, self.kind, self.library, build, feed.inputs, True, feed.size, feed.output)
        self.made.append(replace(case, full_size=full_size))

    def add_each(self, named: str, **options: Any) -> None:
        """Networks that differ in nothing else: ``bert=Bert roberta=Roberta``."""
        for name, model in (pair.split("=") for pair in named.split()):
            self.add(name, model, **options)


def _builder(model: str, config: str, options: Mapping[str, Any]) -> Callable[[Any], nn.Module]:
    """Makes a model of a library: of its configuration in transformers, else of ``options``."""

    def build(library: Any) -> nn.Module:
        make = getattr(library, model)
        named = config or re.sub(r"For[A-Z].*$|Model$|LMHeadModel$", "", model) + "Config"
        made: nn.Module = (
            make(getattr(library, named)(**options)) if library.__name__ == "transformers" else make(**options)
        )
        return made

    return build


def drawn(*shape: int, seed: int = 3) -> Tensor:
    """Normal numbers that do not depend on the global generator."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), device="cpu").to(
        torch.get_default_device()
    )


def tokens(length: int = LENGTH, *, batch: int = BATCH, seed: int = 3) -> Tensor:
    """Token ids [batch, length], none of them special."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, VOCABULARY, (batch, length), generator=generator, device="cpu")
    return ids.to(torch.get_default_device())


def padding(length: int = LENGTH, *, batch: int = BATCH) -> Tensor:
    """An attention mask [batch, length] whose last row is padded by a quarter, as in any mixed batch.

    Without one, eager runs of transformers take paths that traces cannot take.
    """
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length - length // 4 :] = 0
    return mask


def padded(length: int = LENGTH, *, batch: int = BATCH) -> dict[str, Any]:
    """Token ids and their padding."""
    return {"input_ids": tokens(length, batch=batch), "attention_mask": padding(length, batch=batch)}


def classes(count: int = 2, *, batch: int = BATCH) -> Tensor:
    """Labels [batch] of a classifier."""
    return torch.arange(batch) % count


def images(side: int, *, channels: int = 3, batch: int = BATCH) -> Tensor:
    """Images [batch, channels, side, side]."""
    return drawn(batch, channels, side, side)
