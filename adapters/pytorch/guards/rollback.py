"""What of a value can be changed in place, copied before a forward is traced and put back afterwards."""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from torch import nn

from .host_rng import is_generator, rewind, state_of
from .snapshots import NESTING, attributes_of_object, in_context, is_numpy_array, is_plain_object, same, snapshot

Content = tuple[Any, Any]
"""Something that can be changed in place, and what it held."""

_CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict, Counter, bytearray)


def contents_of(value: Any, depth: int = 0) -> Iterator[Content]:
    """What in ``value`` a forward can change in place, each with a copy: containers, plain objects, generators."""
    if isinstance(value, (nn.Module, type)) or depth >= NESTING:
        return
    if is_generator(value):
        yield value, state_of(value)
        return
    if isinstance(value, ContextVar):
        yield from ((value, held) for held in in_context(value))
    elif type(value) in _CONTAINERS or isinstance(value, array) or is_numpy_array(value):
        yield value, value[:] if isinstance(value, array) else value.copy()
    if isinstance(value, (list, tuple, deque)):
        for item in value:
            yield from contents_of(item, depth + 1)
    elif isinstance(value, dict):
        for item in value.values():
            yield from contents_of(item, depth + 1)
    elif is_plain_object(value) and depth < 2:
        held = attributes_of_object(value)
        yield value, held
        for item in held.values():
            yield from contents_of(item, depth + 1)


def put_back(value: Any, content: Any) -> None:
    """Make ``value`` hold again what it held; attributes of objects that were None stay filled."""
    if is_generator(value):
        rewind(value, content)
    elif isinstance(value, ContextVar):
        if in_context(value) != [content]:
            value.set(content)
    elif is_numpy_array(value):
        if not same(snapshot(value), snapshot(content)):
            value[...] = content
    elif is_plain_object(value):
        now = attributes_of_object(value)
        for key, held in content.items():
            if held is not None and now.get(key) is not held:
                object.__setattr__(value, key, held)
    elif not same(snapshot(value), snapshot(content)):
        if isinstance(value, (bytearray, array)):
            value[:] = content
        else:
            value.clear()
            (value.update if isinstance(value, (dict, set)) else value.extend)(content)
