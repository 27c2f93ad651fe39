"""Takes the objects that a forward returns, such as a cache of keys and values, apart into tensors and numbers.

For pytree an object then is a node: its attributes are its leaves, and putting it together makes a new object of its
class without calling its ``__init__``. A planned step returns such an object each time, as the forward does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import FunctionType
from typing import Any

import torch
from torch import nn

from ..torch_private import pytree
from .snapshots import attributes_of_object, is_plain_object

LEAVES = (bool, int, float, str, type(None))
"""The values besides tensors that a graph returns as they are."""
_FIXED = (complex, bytes, range, torch.dtype, torch.device, torch.layout, torch.memory_format, type, FunctionType, Enum)


@dataclass(slots=True)
class _Parts:
    """An object of the class ``kind``, taken apart."""

    kind: type
    attributes: dict[str, Any]


@dataclass(slots=True)
class _Fixed:
    """A value that cannot change, or that is the module's own: returned as it is."""

    value: Any


def _put_together(values: Any, context: Any) -> Any:
    kind, names = context
    made = object.__new__(kind)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    return made


pytree.register_pytree_node(
    _Parts, lambda parts: (list(parts.attributes.values()), (parts.kind, tuple(parts.attributes))), _put_together
)
pytree.register_pytree_node(_Fixed, lambda fixed: ([], fixed.value), lambda _, value: value)


def held_by(module: nn.Module) -> dict[int, Any]:
    """What ``module`` and its submodules keep in attributes, by id."""
    return {id(held): held for child in module.modules() for held in child.__dict__.values()}


def take_apart(value: Any, kept: Mapping[int, Any], around: tuple[int, ...] = ()) -> Any:
    """``value`` with each plain object in it taken apart, except those that are ``kept``, and ``around`` it."""

    def part(leaf: Any) -> Any:
        if isinstance(leaf, (torch.Tensor, *LEAVES)) and not isinstance(leaf, Enum):
            return leaf
        if isinstance(leaf, _FIXED) or id(leaf) in kept:
            return _Fixed(leaf)
        own = any("__new__" in cls.__dict__ for cls in type(leaf).__mro__[:-1])
        if not is_plain_object(leaf) or id(leaf) in around or own:
            return leaf  # it cannot be handed back, and tracing says so
        inside = (*around, id(leaf))
        return _Parts(
            type(leaf), {key: take_apart(held, kept, inside) for key, held in attributes_of_object(leaf).items()}
        )

    leaves, spec = pytree.tree_flatten(value)
    return pytree.tree_unflatten([part(leaf) for leaf in leaves], spec)
