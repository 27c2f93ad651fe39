"""Saves the objects that a forward can change in place before it is traced, and rolls them back afterwards."""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from torch import nn

from .host_rng import is_generator, rewind, state_of
from .snapshots import (
    MAX_NESTING,
    attributes_of_object,
    context_value,
    equal_snapshots,
    is_numpy_array,
    is_plain_object,
    snapshot,
)

Saved = tuple[Any, Any]
"""An object that can be changed in place, and a copy of its content."""

_CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict, Counter, bytearray)


def save(value: Any, depth: int = 0) -> Iterator[Saved]:
    """Everything in ``value`` that can be changed in place: containers, plain objects, arrays, generators."""
    if isinstance(value, (nn.Module, type)) or depth >= MAX_NESTING:
        return
    if is_generator(value):
        yield value, state_of(value)
        return
    if isinstance(value, ContextVar):
        yield from ((value, content) for content in context_value(value))
    elif type(value) in _CONTAINERS or isinstance(value, array) or is_numpy_array(value):
        yield value, value[:] if isinstance(value, array) else value.copy()
    if isinstance(value, (list, tuple, deque)):
        for item in value:
            yield from save(item, depth + 1)
    elif isinstance(value, dict):
        for item in value.values():
            yield from save(item, depth + 1)
    elif is_plain_object(value) and depth < 2:
        attributes = attributes_of_object(value)
        yield value, attributes
        for item in attributes.values():
            yield from save(item, depth + 1)


def roll_back(value: Any, content: Any) -> None:
    """Restore the saved content of ``value``. An attribute that was None keeps its new value: it is a cache."""
    if is_generator(value):
        rewind(value, content)
    elif isinstance(value, ContextVar):
        if context_value(value) != [content]:
            value.set(content)
    elif is_plain_object(value) and not is_numpy_array(value):
        now = attributes_of_object(value)
        for key, saved in content.items():
            if saved is not None and now.get(key) is not saved:
                object.__setattr__(value, key, saved)
    elif not equal_snapshots(snapshot(value), snapshot(content)):
        if is_numpy_array(value):
            value[...] = content
        elif isinstance(value, (bytearray, array)):
            value[:] = content
        else:
            value.clear()
            (value.update if isinstance(value, (dict, set)) else value.extend)(content)
