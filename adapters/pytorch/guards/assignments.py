"""Attributes that a forward sets, and that a planned step sets to the same values: numbers, texts, and its own tensors.

They are attributes of submodules, and of objects that are reached from them, such as a configuration. One that is set
before it is read has the same value after every step of one plan. So has one that was None and is filled with a number
or a text: the plan holds for steps that find it None. A tensor is a result of the step, returned as an
output that the caller does not see. So is one that follows from the tensor that was there before, as a moving average
does: the step reads that one as its input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..torch_private import FunctionalTensor, pytree
from .attribute_reads import AttributeReads, Read, found
from .object_parts import LEAVES, take_apart
from .snapshots import attributes_of_object
from .sources import MISSING


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attribute or buffer that a step sets: the structure of its value, and the distinct outputs that fill it.

    ``first`` says that the forward sets it before it reads it. ``empty`` has what it was if that was no value: None, or
    MISSING.
    """

    target: Read
    first: bool
    spec: pytree.TreeSpec
    outputs: tuple[int, ...]
    empty: tuple[Any, ...] = ()

    @property
    def fills(self) -> bool:
        """Whether the forward has seen that it was empty."""
        return not self.first and bool(self.empty)

    def clear(self, module: nn.Module) -> None:
        """Let go of what the last step has set, unless this one reads it: it would come on top of this one's own."""
        if self.first:
            self._set(module, None)

    def set(self, module: nn.Module, outputs: list[Any]) -> None:
        """Set the attribute of ``module`` to what the step gave."""
        self._set(module, pytree.tree_unflatten([outputs[i] for i in self.outputs], self.spec))

    @contextmanager
    def undone(self, module: nn.Module) -> Iterator[None]:
        """Inside, what the step has filled is empty, as its forward found it."""
        if not self.fills:
            yield
            return
        value = _home(self._holder(module), self.target[1]).get(self.target[1], MISSING)
        self._set(module, self.empty[0])
        try:
            yield
        finally:
            self._set(module, value)

    def _holder(self, module: nn.Module) -> Any:
        owner = self.target[0]
        path: Any = owner[0] if isinstance(owner, tuple) else owner
        return found(owner, {path: module.get_submodule(path)})

    def _set(self, module: nn.Module, value: Any) -> None:
        _put(self._holder(module), self.target[1], value)


def assigned(
    module: nn.Module, reads: AttributeReads, kept: Mapping[int, Any], before: Mapping[Read, Any]
) -> dict[Read, Any]:
    """The attributes that the forward of ``module`` has set and that a planned step can set, with their values.

    What the module ``kept`` before is not taken apart. ``before`` has what the attributes were.
    """
    taken = {id(parameter) for parameter in module.parameters()}
    children, result = dict(module.named_modules()), {}
    for target, first in reads.written.items():
        holder, key = found(target[0], children), target[1]
        if target in reads.before and reads.before[target][0] is not holder:
            continue  # another object is there now
        home = _home(holder, key)
        value = take_apart(home.get(key), kept)
        leaves = pytree.tree_leaves(value)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        own = all(isinstance(leaf, FunctionalTensor) and id(leaf) not in taken for leaf in tensors)
        plain = all(isinstance(leaf, LEAVES) for leaf in leaves if not isinstance(leaf, torch.Tensor))
        follows = len(leaves) == len(tensors) == 1 and not tensors[0].requires_grad
        filled = isinstance(value, LEAVES) and _was_none(holder, key, before.get(target, MISSING))
        if key in home and own and plain and (first or follows or filled):
            result[target] = value
    return result


def _was_none(holder: Any, key: str, before: Any) -> bool:
    """Whether an attribute was None; one that was not there may be a counter (``getattr(self, "count", 0) + 1``)."""
    return before is None or (before is MISSING and getattr(type(holder), key, MISSING) is None)


def attributes(module: nn.Module) -> dict[Read, Any]:
    """The attributes and buffers of a module and its submodules."""
    return {
        (path, key): value
        for path, child in module.named_modules()
        for home in (child.__dict__, child._buffers)
        for key, value in home.items()
    }


def put_back(module: nn.Module, before: Mapping[Read, Any], targets: Iterable[Read]) -> None:
    """Set attributes to what they were ``before``; those that were not there are removed."""
    children = dict(module.named_modules())
    for target in targets:
        _put(found(target[0], children), target[1], before.get(target, MISSING))


def _home(holder: Any, key: str) -> dict[str, Any]:
    """Where a module keeps an attribute or buffer; of an object, a copy of its attributes."""
    if not isinstance(holder, nn.Module):
        return attributes_of_object(holder)
    home: dict[str, Any] = holder._buffers if key in holder._buffers else holder.__dict__
    return home


def _put(holder: Any, key: str, value: Any) -> None:
    if isinstance(holder, nn.Module):
        home = _home(holder, key)
        if value is MISSING:
            home.pop(key, None)
        else:
            home[key] = value
    elif value is not MISSING:
        object.__setattr__(holder, key, value)
    elif key in attributes_of_object(holder):
        object.__delattr__(holder, key)
