"""What an attribute holds at a moment, so that a change is seen: of containers, plain objects and generators, too."""

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
from pathlib import PurePath
from typing import Any

import torch
from torch import nn

from .host_rng import is_generator, state_of

_LONGEST = 2**20
"""Bytes of an array that are compared; of a longer one its shape is."""
NESTING = 4
"""Containers inside containers that are looked into."""
OBJECTS = 2
"""Plain objects inside objects that are looked into."""


def in_context(variable: ContextVar[Any]) -> list[Any]:
    """What a context variable is, its default where it was not set; nothing where it has none."""
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
    ContextVar: in_context,
    bytearray: lambda value: [bytes(value)],
    array: lambda value: [value.typecode, *_elements(value)],
}
_PLAIN = (
    *(Number, str, bytes, type(None), range, slice, PurePath, re.Pattern),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
"""Equal where their values are."""
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
    IOBase,
)
"""Taken as they are: a logger remembers which levels it was asked for, a file what it has written."""


class _Held(list[Any]):
    """What a container held."""


class _Attributes(dict[str, Any]):
    """What a plain object held, by attribute, and its type."""


def snapshot(value: Any, *, states: bool = False, looked_into: bool = True) -> Any:
    """``value``, with what containers hold copied, of plain objects, too, where they are ``looked_into``.

    With ``states`` also what random generators would draw next.
    """
    return _snapshot(value, states, 0, 0 if looked_into else OBJECTS)


def _snapshot(value: Any, states: bool, depth: int, objects: int) -> Any:
    if isinstance(value, (*_PLAIN, *_WHOLE)):
        return value
    for kind, held in _KINDS.items():
        if isinstance(value, kind):
            if depth >= NESTING:
                return value
            return _Held(_snapshot(item, states, depth + 1, objects) for item in held(value))
    if is_numpy_array(value):
        return _Held([value.dtype.str, str(value.shape), *_elements(value)])
    if is_generator(value):
        return repr(state_of(value)) if states else value
    if is_plain_object(value) and objects < OBJECTS:
        made = _Attributes({"": type(value)})
        for key, held in attributes_of_object(value).items():
            made[key] = _snapshot(held, states, depth, objects + 1)
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


def is_plain_object(value: Any) -> bool:
    """Whether ``value`` is an instance of a Python class that is not torch's: its attributes can be looked at."""
    cls = type(value)
    if cls.__module__.partition(".")[0] in ("torch", "builtins") or isinstance(value, (*_PLAIN, *_WHOLE, *_KINDS)):
        return False
    return hasattr(value, "__dict__") or bool(slots_of(cls))


def attributes_of_object(value: Any) -> dict[str, Any]:
    """The attributes of a plain object, those in slots too."""
    own = dict(getattr(value, "__dict__", {}))
    own.update({key: getattr(value, key) for key in slots_of(type(value)) if hasattr(value, key)})
    return own


def is_identical(value: Any) -> bool:
    """Whether a value is taken as it is, with nothing in it that could change."""
    return isinstance(value, (*_PLAIN, *_WHOLE))


def is_data(value: Any) -> bool:
    """Whether ``value`` can be compared with what it was: a number, text, container, array, generator or iterator."""
    compared = isinstance(value, (*_PLAIN, *_KINDS)) or is_numpy_array(value) or is_generator(value)
    return compared or drawn_within(value) is not None


def is_numpy_array(value: Any) -> bool:
    """Whether ``value`` is an array of numpy, which is not imported for that."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def is_large(value: Any) -> bool:
    """Whether a value is an array of which the elements are not compared."""
    nbytes = len(value) * value.itemsize if isinstance(value, array) else getattr(value, "nbytes", 0)
    return isinstance(nbytes, int) and nbytes > _LONGEST


def plain_part(value: Any, depth: int = 0) -> Any:
    """``value``, containers in it without what is no data: a registry, a cache of objects may grow."""
    if depth < NESTING and isinstance(value, (dict, types.MappingProxyType)):
        return {key: plain_part(held, depth + 1) for key, held in value.items() if _is_kept(key) and _is_kept(held)}
    if depth < NESTING and isinstance(value, (list, tuple, deque, set, frozenset)):
        kept = [plain_part(held, depth + 1) for held in value if _is_kept(held)]
        return kept if isinstance(value, (list, tuple, deque)) else set(kept)
    return value


def _is_kept(value: Any) -> bool:
    return isinstance(value, Enum) or is_data(value)


def drawn_within(held: Any) -> Any:
    """What of a snapshot is drawn from out of sight, an iterator or a file open for reading; None where nothing is."""
    if isinstance(held, (_Held, _Attributes)):
        inner = held.values() if isinstance(held, _Attributes) else held
        return next((found for found in map(drawn_within, inner) if found is not None), None)
    if isinstance(held, IOBase):
        written = str(getattr(held, "mode", "")).startswith("a")  # a log
        return held if not held.closed and held.readable() and not written else None
    if type(held).__module__.startswith("unittest.mock"):  # has every method there is
        return None
    return held if isinstance(held, Iterator) and not isinstance(held, (*_PLAIN, *_WHOLE)) else None


_SLOTS: weakref.WeakKeyDictionary[type, tuple[str, ...]] = weakref.WeakKeyDictionary()


def slots_of(cls: type) -> tuple[str, ...]:
    """The names of the slots of a class, as attributes are called."""
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
    """The bytes of the elements of an array, of a large one nothing; of Python objects, those objects."""
    if not isinstance(value, array) and value.dtype.hasobject:
        return list(value.flat)
    return [] if is_large(value) else [value.tobytes()]
