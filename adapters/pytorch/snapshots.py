"""What an attribute holds at a moment, so that a change is seen: of containers, plain objects and generators, too."""

from __future__ import annotations

import functools
import logging
import random
import sys
import types
from collections import deque
from collections.abc import Callable
from enum import Enum
from numbers import Number
from typing import Any

import torch
from torch import nn

NESTING = 4
"""Containers inside containers that are looked into."""
_OBJECTS = 2
"""Plain objects inside objects that are looked into."""

_KINDS: dict[type, Callable[[Any], list[Any]]] = {
    list: list,
    tuple: list,
    deque: list,
    set: lambda value: sorted(value, key=id),
    dict: lambda value: [*value.keys(), *value.values()],
}
_PLAIN = (Number, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_WHOLE = (
    torch.Tensor,
    nn.Module,
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    functools.partial,
    Enum,
    logging.Logger,
    logging.LoggerAdapter,
)
"""Taken as they are: a logger remembers which levels it was asked for."""


class _Held(list[Any]):
    """What a container held."""


class _Attributes(dict[str, Any]):
    """What a plain object held, by attribute, and its type."""


def snapshot(value: Any, *, states: bool = False, depth: int = 0, objects: int = 0) -> Any:
    """``value``, with what containers and plain objects hold copied; with ``states``, of random generators, too."""
    if isinstance(value, (*_PLAIN, *_WHOLE)):
        return value
    for kind, held in _KINDS.items():
        if isinstance(value, kind):
            if depth >= NESTING:
                return value
            return _Held(snapshot(item, states=states, depth=depth + 1, objects=objects) for item in held(value))
    if is_generator(value):
        return repr(state_of(value)) if states else value
    if is_plain_object(value) and objects < _OBJECTS:
        made = _Attributes({"": type(value)})
        for key, held in vars(value).items():
            made[key] = snapshot(held, states=states, depth=depth, objects=objects + 1)
        return made
    return value


def same(one: Any, other: Any, *, filled: bool = False) -> bool:
    """Whether two snapshots tell of the same; what cannot be looked into must be one and the same object.

    ``filled``: attributes of plain objects that the first has not, or that are None there, may hold anything.
    """
    if isinstance(one, _Held) and isinstance(other, _Held):
        return len(one) == len(other) and all(same(a, b, filled=filled) for a, b in zip(one, other, strict=True))
    if isinstance(one, _Attributes) and isinstance(other, _Attributes):
        kept = [key for key, value in one.items() if value is not None] if filled else list({**one, **other})
        return all(key in one and key in other and same(one[key], other[key], filled=filled) for key in kept)
    if one is other:
        return True
    return type(one) is type(other) and isinstance(one, _PLAIN) and bool(one == other or one != one)


def described(held: Any) -> Any:
    """A snapshot that keeps nothing alive, equal for copies: of what cannot be looked into the type alone."""
    if isinstance(held, _Held):
        return _Held(described(item) for item in held)
    if isinstance(held, _Attributes):
        return _Attributes({key: described(value) for key, value in held.items()})
    return held if isinstance(held, (*_PLAIN, type, types.FunctionType)) else type(held)


def is_generator(value: Any) -> bool:
    """Whether ``value`` is a random generator of Python's or numpy's own classes."""
    numpy = sys.modules.get("numpy")
    return isinstance(value, random.Random) or (
        numpy is not None and isinstance(value, (numpy.random.Generator, numpy.random.RandomState))
    )


def state_of(generator: Any) -> Any:
    """The state of a random generator, which `rewind` takes."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.get_state()


def rewind(generator: Any, state: Any) -> None:
    """Put a random generator back to a state it had."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def is_plain_object(value: Any) -> bool:
    """Whether ``value`` is an instance of a Python class that is not torch's: its attributes can be looked at."""
    home = type(value).__module__.partition(".")[0]
    return hasattr(value, "__dict__") and home not in ("torch", "builtins") and not isinstance(value, _WHOLE)
