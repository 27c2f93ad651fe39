"""Snapshots of values, to see a later change, and a quick check that comes before comparing them."""

from __future__ import annotations

import functools
import logging
import re
import sys
import types
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from enum import Enum
from io import IOBase
from numbers import Number
from operator import is_
from pathlib import PurePath
from typing import Any

import torch
from torch import nn

from ..errors import UnsupportedModuleError
from .host_rng import is_generator, state_of

_MAX_ARRAY_NBYTES = 2**20
"""Arrays up to this size are compared by content, larger ones by shape."""
MAX_NESTING = 4
"""How deep containers inside containers are followed."""
MAX_OBJECTS = 2
"""How deep plain objects inside objects are followed."""


def context_value(variable: ContextVar[Any]) -> list[Any]:
    """The value of a context variable, or its default, in a list; empty if it has neither."""
    try:
        return [variable.get()]
    except LookupError:
        return []


_KINDS: dict[type, Callable[[Any], list[Any]]] = {
    list: list,
    tuple: list,
    deque: list,
    set: lambda value: sorted(value, key=id),
    frozenset: lambda value: sorted(value, key=id),
    dict: lambda value: [*value.keys(), *value.values()],
    types.MappingProxyType: lambda value: [*value.keys(), *value.values()],
    ContextVar: context_value,
    bytearray: lambda value: [bytes(value)],
    array: lambda value: [value.typecode, *_elements(value)],
}
_PLAIN = (
    *(Number, str, bytes, type(None), range, slice, PurePath, re.Pattern),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
"""Compared by value."""
_OPAQUE = (
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
    IOBase,
)
"""Compared by identity: a logger caches which levels are enabled, a file changes as it is written."""


class _Items(list[Any]):
    """The content of a container."""


class _Attributes(dict[str, Any]):
    """The attributes of a plain object by name; its type under the empty name."""


def snapshot(value: Any, *, generator_states: bool = False, into_objects: bool = True) -> Any:
    """A copy of ``value`` and of the containers in it, to compare by `equal_snapshots`.

    ``into_objects`` follows the attributes of plain objects; ``generator_states`` includes the states of generators.
    """
    return _snapshot(value, generator_states, 0, 0 if into_objects else MAX_OBJECTS)


def _snapshot(value: Any, generator_states: bool, depth: int, objects: int) -> Any:
    if isinstance(value, (*_PLAIN, *_OPAQUE)):
        return value
    for kind, content in _KINDS.items():
        if isinstance(value, kind):
            if depth >= MAX_NESTING:
                return value
            return _Items(_snapshot(item, generator_states, depth + 1, objects) for item in content(value))
    if is_numpy_array(value):
        return _Items([value.dtype.str, str(value.shape), *_elements(value)])
    if is_generator(value):
        return repr(state_of(value)) if generator_states else value
    if is_plain_object(value) and objects < MAX_OBJECTS:
        made = _Attributes({"": type(value)})
        for key, content in attributes_of_object(value).items():
            made[key] = _snapshot(content, generator_states, depth, objects + 1)
        return made
    return value


def equal_snapshots(one: Any, other: Any, *, ignore_filled: bool = False) -> bool:
    """Whether nothing changed between two snapshots. Opaque values must be the same object.

    ``ignore_filled``: attributes of plain objects that were missing or None before may have any value now.
    """
    if isinstance(one, _Items) and isinstance(other, _Items):
        return len(one) == len(other) and all(
            equal_snapshots(a, b, ignore_filled=ignore_filled) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, _Attributes) and isinstance(other, _Attributes):
        kept = [key for key, value in one.items() if value is not None] if ignore_filled else list({**one, **other})
        return all(
            key in one and key in other and equal_snapshots(one[key], other[key], ignore_filled=ignore_filled)
            for key in kept
        )
    if one is other:
        return True
    return type(one) is type(other) and isinstance(one, _PLAIN) and bool(one == other or one != one)


def without_references(content: Any) -> Any:
    """A snapshot that keeps no object alive and is equal for copies: opaque values are replaced by their types."""
    if isinstance(content, _Items):
        return _Items(without_references(item) for item in content)
    if isinstance(content, _Attributes):
        return _Attributes({key: without_references(value) for key, value in content.items()})
    return content if isinstance(content, (*_PLAIN, type, types.FunctionType)) else type(content)


def is_plain_object(value: Any) -> bool:
    """Whether ``value`` is an instance of a Python class outside of torch, with attributes that can be compared."""
    cls = type(value)
    if cls.__module__.partition(".")[0] in ("torch", "builtins") or isinstance(value, (*_PLAIN, *_OPAQUE, *_KINDS)):
        return False
    return hasattr(value, "__dict__") or bool(slots_of(cls))


def attributes_of_object(value: Any) -> dict[str, Any]:
    """The attributes of a plain object, including those in slots."""
    own = dict(getattr(value, "__dict__", {}))
    own.update({key: getattr(value, key) for key in slots_of(type(value)) if hasattr(value, key)})
    return own


def is_leaf(value: Any) -> bool:
    """Whether a value has no content that is followed."""
    return isinstance(value, (*_PLAIN, *_OPAQUE))


def is_data(value: Any) -> bool:
    """Whether ``value`` is data: a number, text, container, array, generator or iterator."""
    compared = isinstance(value, (*_PLAIN, *_KINDS)) or is_numpy_array(value) or is_generator(value)
    return compared or find_iterator(value) is not None


def is_numpy_array(value: Any) -> bool:
    """Whether ``value`` is a NumPy array; NumPy is not imported to find out."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def is_large_array(value: Any) -> bool:
    """Whether a value is an array too large to compare by content."""
    nbytes = len(value) * value.itemsize if isinstance(value, array) else getattr(value, "nbytes", 0)
    return isinstance(nbytes, int) and nbytes > _MAX_ARRAY_NBYTES


def data_part(value: Any, depth: int = 0) -> Any:
    """``value`` with only the data in its containers: a registry or cache of other objects may grow."""
    if depth < MAX_NESTING and isinstance(value, (dict, types.MappingProxyType)):
        return {
            key: data_part(content, depth + 1)
            for key, content in value.items()
            if _is_compared(key) and _is_compared(content)
        }
    if depth < MAX_NESTING and isinstance(value, (list, tuple, deque, set, frozenset)):
        kept = [data_part(content, depth + 1) for content in value if _is_compared(content)]
        return kept if isinstance(value, (list, tuple, deque)) else set(kept)
    return value


def _is_compared(value: Any) -> bool:
    return isinstance(value, Enum) or is_data(value)


def find_iterator(content: Any) -> Any:
    """The first iterator, or file open for reading, in a snapshot; None if there is none."""
    if isinstance(content, (_Items, _Attributes)):
        inner = content.values() if isinstance(content, _Attributes) else content
        return next((found for found in map(find_iterator, inner) if found is not None), None)
    if isinstance(content, IOBase):
        written = str(getattr(content, "mode", "")).startswith("a")  # a log file
        return content if not content.closed and content.readable() and not written else None
    if type(content).__module__.startswith("unittest.mock"):  # a mock has every method
        return None
    return content if isinstance(content, Iterator) and not isinstance(content, (*_PLAIN, *_OPAQUE)) else None


def refuse_iterator(content: Any, reader: str) -> None:
    """Raise UnsupportedModuleError for an iterator, or a file open for reading, in the snapshot of what is read."""
    found = find_iterator(content)
    if found is not None:
        raise UnsupportedModuleError(
            f"{reader}, a {type(found).__name__}; a plan would repeat for ever what is drawn from it",
            remedy="draw outside and pass what is drawn as an argument",
        )


_SLOTS: weakref.WeakKeyDictionary[type, tuple[str, ...]] = weakref.WeakKeyDictionary()


def slots_of(cls: type) -> tuple[str, ...]:
    """The attribute names of a class's slots."""
    if cls in _SLOTS:
        return _SLOTS[cls]
    found = []
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            hidden = name.startswith("__") and not name.endswith("__")
            found.append(f"_{base.__name__.lstrip('_')}{name}" if hidden else name)
    _SLOTS[cls] = tuple(name for name in found if name not in ("__dict__", "__weakref__"))
    return _SLOTS[cls]


def _elements(value: Any) -> list[Any]:
    """What is compared of an array's elements: their bytes, nothing if it is large, the objects if it holds objects."""
    if not isinstance(value, array) and value.dtype.hasobject:
        return list(value.flat)
    return [] if is_large_array(value) else [value.tobytes()]


_ITEMS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    **dict.fromkeys((list, tuple, deque, set, frozenset), tuple),
    dict: lambda value: (*value, *value.values()),
    ContextVar: lambda value: tuple(context_value(value)),
}


class IdentityCheck:
    """True while ``value`` holds the objects that it held; only if it is False, a step compares snapshots.

    Follows containers as deep as `snapshot` does; what objects hold is no part of it.
    """

    __slots__ = ("_inner", "_items", "_list_items", "_value")

    def __init__(self, value: Any, depth: int = 0) -> None:
        self._value = value
        self._list_items = _item_lister(value, depth)
        self._items = () if self._list_items is None else self._list_items(value)
        within = (IdentityCheck(item, depth + 1) for item in self._items)
        self._inner = tuple(check for check in within if check._list_items is not None)

    @property
    def has_content(self) -> bool:
        """Whether the value holds anything that can change: a tuple of numbers does not."""
        fixed = type(self._value) in (tuple, frozenset, torch.Size) and not self._inner
        return self._list_items is not None and not fixed

    def __bool__(self) -> bool:
        if self._list_items is None:
            return True
        now = self._list_items(self._value)
        return len(now) == len(self._items) and all(map(is_, now, self._items)) and all(self._inner)


def _item_lister(value: Any, depth: int) -> Callable[[Any], tuple[Any, ...]] | None:
    """How to list what ``value`` holds; None for a value without content that can change."""
    if is_leaf(value):
        return None
    for kind, items in _ITEMS.items():
        if isinstance(value, kind):
            return items if depth < MAX_NESTING else None
    if is_data(value):
        return _shape if is_large_array(value) else _never_same
    return None


def _never_same(_: Any) -> tuple[Any, ...]:
    """For small arrays, whose content has no identity."""
    return (object(),)


def _shape(value: Any) -> tuple[Any, ...]:
    return (sys.intern(repr(getattr(value, "shape", len(value)))),)
