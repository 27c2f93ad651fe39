"""Attributes that a forward sets, and that a planned step sets to the same values: numbers, texts, and its own tensors.

An attribute that is set before it is read has the same value after every step of one plan. A tensor is a result of the
step, returned as an output that the caller does not see. So is one that follows from the tensor that was there before,
as a moving average does: the step reads that one as its input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..torch_private import FunctionalTensor, pytree
from .attribute_reads import AttributeReads, Place
from .object_parts import LEAVES, take_apart


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attribute or buffer that a step sets: the structure of its value, and the distinct outputs that fill it.

    ``first`` says that the forward sets it before it reads it.
    """

    target: Place
    first: bool
    spec: pytree.TreeSpec
    outputs: tuple[int, ...]

    def clear(self, module: nn.Module) -> None:
        """Let go of what the last step has set, unless this one reads it: it would come on top of this one's own."""
        if self.first:
            self._home(module)[self.target[1]] = None

    def set(self, module: nn.Module, outputs: list[Any]) -> None:
        """Set the attribute of ``module`` to what the step gave."""
        self._home(module)[self.target[1]] = pytree.tree_unflatten([outputs[i] for i in self.outputs], self.spec)

    def _home(self, module: nn.Module) -> dict[str, Any]:
        return home_of(module.get_submodule(self.target[0]), self.target[1])


def home_of(owner: nn.Module, key: str) -> dict[str, Any]:
    """Where a module keeps an attribute or buffer."""
    home: dict[str, Any] = owner._buffers if key in owner._buffers else owner.__dict__
    return home


def assigned(module: nn.Module, reads: AttributeReads, kept: Mapping[int, Any]) -> dict[Place, Any]:
    """The attributes that the forward of ``module`` has set and that a planned step can set, with their values.

    What the module ``kept`` before is not taken apart.
    """
    taken = {id(parameter) for parameter in module.parameters()}
    found = {}
    for (path, key), first in reads.written.items():
        home = home_of(module.get_submodule(path), key)
        value = take_apart(home.get(key), kept)
        leaves = pytree.tree_leaves(value)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        own = all(isinstance(leaf, FunctionalTensor) and id(leaf) not in taken for leaf in tensors)
        plain = all(isinstance(leaf, LEAVES) for leaf in leaves if not isinstance(leaf, torch.Tensor))
        follows = len(leaves) == len(tensors) == 1 and not tensors[0].requires_grad
        if key in home and own and plain and (first or follows):
            found[path, key] = value
    return found


def attributes(module: nn.Module) -> dict[Place, Any]:
    """The attributes and buffers of a module and its submodules."""
    return {
        (path, key): value
        for path, child in module.named_modules()
        for home in (child.__dict__, child._buffers)
        for key, value in home.items()
    }


def put_back(module: nn.Module, before: Mapping[Place, Any], places: Iterable[Place]) -> None:
    """Set attributes to what they were ``before``; those that were not there are removed."""
    for path, key in places:
        home = home_of(module.get_submodule(path), key)
        if (path, key) in before:
            home[key] = before[path, key]
        else:
            del home[key]
