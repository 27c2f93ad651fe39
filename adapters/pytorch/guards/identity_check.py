"""A quick check that a value still holds the same objects; a step compares snapshots only if it fails."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from operator import is_
from typing import Any

from .snapshots import (
    MAX_NESTING,
    MAX_OBJECTS,
    attributes_of_object,
    is_data,
    is_large_array,
    is_leaf,
    is_plain_object,
)

_ITEMS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    **dict.fromkeys((list, tuple, deque, set, frozenset), tuple),
    dict: lambda value: (*value, *value.values()),
}


class IdentityCheck:
    """True while ``value`` holds the objects that it held. May be False although nothing changed.

    Follows containers and objects as deep as `snapshot` does with the same ``into_objects``.
    """

    __slots__ = ("_inner", "_items", "_list_items", "_value")

    def __init__(self, value: Any, *, into_objects: bool = True, depth: int = 0, objects: int = 0) -> None:
        self._value = value
        self._list_items = _item_lister(value, depth, objects if into_objects else MAX_OBJECTS)
        self._items = () if self._list_items is None else self._list_items(value)
        plain = is_plain_object(value)
        depth, objects = depth + (not plain), objects + plain
        inner = (IdentityCheck(item, into_objects=into_objects, depth=depth, objects=objects) for item in self._items)
        self._inner = tuple(check for check in inner if check._list_items is not None)

    def __bool__(self) -> bool:
        if self._list_items is None:
            return True
        now = self._list_items(self._value)
        return len(now) == len(self._items) and all(map(is_, now, self._items)) and all(self._inner)


def _item_lister(value: Any, depth: int, objects: int) -> Callable[[Any], tuple[Any, ...]] | None:
    """How to list what ``value`` holds; None for a value without content that can change."""
    if is_leaf(value):
        return None
    for kind, items in _ITEMS.items():
        if isinstance(value, kind):
            return items if depth < MAX_NESTING else None
    if is_data(value):
        return _shape if is_large_array(value) else _never_same
    return _attributes if is_plain_object(value) and objects < MAX_OBJECTS else None


def _never_same(_: Any) -> tuple[Any, ...]:
    """For small arrays and context variables, whose content has no identity."""
    return (object(),)


def _shape(value: Any) -> tuple[Any, ...]:
    return (sys.intern(repr(getattr(value, "shape", len(value)))),)


def _attributes(value: Any) -> tuple[Any, ...]:
    attributes = attributes_of_object(value)
    return (*attributes, *attributes.values())
