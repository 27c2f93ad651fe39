"""Whether a value holds the very objects it held: the quick look at each step, before snapshots are compared."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from operator import is_
from typing import Any

from .snapshots import NESTING, OBJECTS, attributes_of_object, is_data, is_identical, is_large, is_plain_object

_ITEMS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    list: tuple,
    tuple: tuple,
    deque: tuple,
    set: tuple,
    frozenset: tuple,
    dict: lambda value: (*value, *value.values()),
}


class Unmoved:
    """True as long as ``value`` holds what it held; false, too, where that takes a comparison of snapshots.

    ``looked_into``: as for `snapshot`, with which it goes as far.
    """

    __slots__ = ("_inner", "_items", "_items_of", "_value")

    def __init__(self, value: Any, *, looked_into: bool = True, depth: int = 0, objects: int = 0) -> None:
        self._value = value
        self._items_of = _items_of(value, depth, objects if looked_into else OBJECTS)
        self._items = () if self._items_of is None else self._items_of(value)
        plain = is_plain_object(value)
        depth, objects = depth + (not plain), objects + plain
        inner = (Unmoved(item, looked_into=looked_into, depth=depth, objects=objects) for item in self._items)
        self._inner = tuple(found for found in inner if found._items_of is not None)

    def __bool__(self) -> bool:
        if self._items_of is None:
            return True
        now = self._items_of(self._value)
        return len(now) == len(self._items) and all(map(is_, now, self._items)) and all(self._inner)


def _items_of(value: Any, depth: int, objects: int) -> Callable[[Any], tuple[Any, ...]] | None:
    """How to list what ``value`` holds; None where it is taken as it is."""
    if is_identical(value):
        return None
    for kind, items in _ITEMS.items():
        if isinstance(value, kind):
            return items if depth < NESTING else None
    if is_data(value):
        return _shape if is_large(value) else _anew
    return _attributes if is_plain_object(value) and objects < OBJECTS else None


def _anew(_: Any) -> tuple[Any, ...]:
    """An array, a context variable: never the same."""
    return (object(),)


def _shape(value: Any) -> tuple[Any, ...]:
    """What is compared of a large array."""
    return (sys.intern(repr(getattr(value, "shape", len(value)))),)


def _attributes(value: Any) -> tuple[Any, ...]:
    own = attributes_of_object(value)
    return (*own, *own.values())
