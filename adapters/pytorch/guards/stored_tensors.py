"""Tensors that a forward stores in dictionaries and lists, as hooks do that collect features.

The containers are attributes of submodules, or named by code that runs: globals, variables of closures. A planned step
stores its own tensors in them. No guard sees what a forward found in one, so a plan holds only for steps that find it
alike: a key that was there is there, and a list is as long as it was.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
from torch import nn

from ..torch_private import FunctionalTensor, pytree
from .attribute_reads import Outside, Owner, found
from .object_parts import LEAVES, take_apart
from .rollback import Saved
from .sources import MISSING

_DICTIONARIES = (dict, OrderedDict, defaultdict)
_OWN = frozenset(nn.Module().__dict__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a forward stores something: a container, the key in a dictionary or the index in a list, what it found.

    ``before`` says whether the key was there; of a list it is the length. ``cleared`` lists have lost what was in them.
    """

    home: Owner
    key: Any
    before: bool | int
    cleared: bool = False

    def __str__(self) -> str:
        name = self.home.name if isinstance(self.home, Outside) else f"attribute {'.'.join(self.home).lstrip('.')!r}"
        return f"what is under {self.key!r} in {name}" if isinstance(self.before, bool) else f"the length of {name}"

    def container(self, module: nn.Module) -> Any:
        """The dictionary or list of ``module``, or outside of it."""
        if isinstance(self.home, Outside):
            return self.home.value
        path = self.home[0]
        return found(self.home, {path: module.get_submodule(path)})

    def is_as_before(self, module: nn.Module) -> bool:
        """Whether a forward would find what the traced one did."""
        there = self.container(module)
        if type(there) is list:
            return len(there) == self.before
        return isinstance(there, dict) and (self.key in there) == self.before

    def without(self, content: Any) -> Any:
        """A copy of a container's content without what is stored in this place."""
        if isinstance(content, dict):
            return {key: value for key, value in content.items() if key != self.key}
        if type(content) is list:
            return [] if self.cleared else content[: self.before]
        return content


@dataclass(frozen=True, slots=True)
class Stored:
    """What a step stores in one place: the structure of the value, and the distinct outputs that fill it."""

    place: Place
    spec: pytree.TreeSpec
    outputs: tuple[int, ...]

    def clear(self, module: nn.Module) -> None:
        """Let go of what the last step has stored, where the forward does not add to it."""
        there, key = self.place.container(module), self.place.key
        if self.place.cleared:
            there.clear()
        elif isinstance(there, dict) and key in there:
            there[key] = None

    def set(self, module: nn.Module, outputs: list[Any]) -> None:
        """Store what the step gave."""
        there, value = (
            self.place.container(module),
            pytree.tree_unflatten([outputs[i] for i in self.outputs], self.spec),
        )
        if type(there) is list:
            there.append(value)
        else:
            there[self.place.key] = value

    @contextmanager
    def undone(self, module: nn.Module) -> Iterator[None]:
        """Inside, the container is as long, or lacks the key, as the step's forward found it."""
        there, place = self.place.container(module), self.place
        if place.is_as_before(module):
            yield
            return
        content = there.copy()
        if type(there) is list:
            there[:] = [None] * place.before if place.cleared else there[: place.before]
        elif place.before:
            there[place.key] = None
        else:
            del there[place.key]
        try:
            yield
        finally:
            there.clear()
            (there.extend if type(there) is list else there.update)(content)


def containers_of(module: nn.Module) -> list[tuple[Owner, Any, Any]]:
    """The dictionaries and lists in attributes of a module and its submodules: where, which, and a copy."""
    return [
        ((path, key), value, value.copy())
        for path, child in module.named_modules()
        for key, value in child.__dict__.items()
        if key not in _OWN and type(value) in (*_DICTIONARIES, list)
    ]


def containers_outside(saved: Iterable[tuple[str, Saved]]) -> list[tuple[Owner, Any, Any]]:
    """The same of what was saved outside of a module."""
    return [
        (Outside(value, description), value, content)
        for description, (value, content) in saved
        if type(value) in (*_DICTIONARIES, list)
    ]


def stored(
    module: nn.Module, containers: Iterable[tuple[Owner, Any, Any]], kept: Mapping[int, Any]
) -> dict[Place, tuple[Any, Any]]:
    """Where the forward of ``module`` has stored tensors of its own, with what is there now and what was in all there.

    What the module ``kept`` before is not taken apart.
    """
    taken = {id(parameter) for parameter in module.parameters()}
    seen: set[int] = set()
    result: dict[Place, tuple[Any, Any]] = {}
    for home, value, before in containers:
        if id(value) in seen:
            continue
        seen.add(id(value))
        in_order = type(value) is list
        changed = _added(home, value, before) if in_order else _under_keys(home, value, before)
        parts = {place: take_apart(item, kept) for place, item in changed.items()}
        own = {place: part for place, part in parts.items() if _is_of_tensors(part, taken)}
        if not in_order or len(own) == len(parts):
            result |= {place: (part, before) for place, part in own.items()}
    return result


def _under_keys(home: Owner, value: dict[Any, Any], before: dict[Any, Any]) -> dict[Place, Any]:
    """What a dictionary has got under its keys."""
    new = ((key, item) for key, item in value.items() if item is not before.get(key, MISSING))
    return {Place(home, key, key in before): item for key, item in new}


def _added(home: Owner, value: list[Any], before: list[Any]) -> dict[Place, Any]:
    """What was added to a list, or to one that was cleared."""
    if len(value) >= len(before) and all(map(is_, value, before)):
        return {Place(home, at, len(before)): item for at, item in enumerate(value) if at >= len(before)}
    if set(map(id, value)).isdisjoint(map(id, before)):
        return {Place(home, at, len(before), cleared=True): item for at, item in enumerate(value)}
    return {}


def _is_of_tensors(value: Any, taken: set[int]) -> bool:
    """Whether a value is made of tensors of the trace, and of numbers and texts."""
    leaves = pytree.tree_leaves(value)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    own = all(isinstance(leaf, FunctionalTensor) and id(leaf) not in taken for leaf in tensors)
    return bool(tensors) and own and all(isinstance(leaf, (torch.Tensor, *LEAVES)) for leaf in leaves)


def take_back(module: nn.Module, places: Mapping[Place, tuple[Any, Any]]) -> None:
    """Remove what was stored, and put back what was there before."""
    for place, (_, before) in places.items():
        there = place.container(module)
        if type(there) is list:
            there[:] = before
        elif place.before:
            there[place.key] = before[place.key]
        else:
            del there[place.key]
