"""Places outside of a module that code names: where a value is read, what it was, and how it is put back."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import CellType, FunctionType, ModuleType
from typing import Any

from .identity_check import Unmoved
from .rollback import Content, put_back
from .snapshots import is_data, is_plain_object, plain_part, same, slots_of, snapshot

LARGEST = 1024
"""Items of a container that are compared; of a larger one the number of items is."""
UNSEEN = frozenset(
    {*sys.stdlib_module_names, "torch", "ogc_plan", "numpy", "sympy", "mpmath", "triton", "functorch", "torchgen"}
)
MISSING = object()


class Variable:
    """A closure's variable, read like an entry of a dictionary."""

    def __init__(self, cell: CellType) -> None:
        self._cell = cell

    def get(self, _: str, missing: Any) -> Any:
        """What the variable is."""
        try:
            return self._cell.cell_contents
        except ValueError:  # empty
            return missing


class _Inherited:
    """An attribute of an object or class, found where Python finds it, read like an entry of a dictionary."""

    def __init__(self, homes: list[Any]) -> None:
        self._homes = homes

    def get(self, key: str, missing: Any) -> Any:
        """What the attribute is."""
        for home in self._homes:
            if key in home:
                return home[key]
        return missing


class _Slot:
    """An attribute in a slot, read like an entry of a dictionary."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def get(self, key: str, missing: Any) -> Any:
        """What the attribute is."""
        return getattr(self._owner, key, missing)


@dataclass(frozen=True, slots=True)
class Place:
    """One name: what it is read from (``home.get(key)``), what it is called, and what it was.

    ``held`` is its snapshot, ``states`` the one with states of random generators; ``put`` and ``contents`` put it back.
    """

    home: Any
    key: str
    told: str
    value: Any
    held: Any
    states: Any
    put: Callable[[Any], Any]
    contents: tuple[Content, ...]

    def moved(self) -> bool:
        """Whether it was changed; a name that is filled with what is no data is a cache."""
        now = self.home.get(self.key, MISSING)
        if (self.value is None or self.value is MISSING) and now is not MISSING and not is_data(now):
            return False
        return not same(held_of(now, states=True), self.states)

    def stays(self) -> bool:
        """Whether the name stands for what it did."""
        return self.home.get(self.key, MISSING) is self.value

    def restore(self) -> None:
        """Put back what was there."""
        for container, content in self.contents:
            put_back(container, content)
        if self.value is not MISSING:
            self.put(self.value)
        elif isinstance(self.home, dict):
            self.home.pop(self.key, None)


def held_of(value: Any, *, states: bool = False) -> Any:
    """A snapshot of the data in a value; of a large container the number of its items."""
    if _items(value) > LARGEST:
        return f"{len(value)} items"
    return snapshot(plain_part(value), states=states, looked_into=False)


class Count:
    """True as long as a large container has as many items as it had."""

    def __init__(self, value: Any) -> None:
        self._value, self._count = value, len(value)

    def __bool__(self) -> bool:
        return len(self._value) == self._count


def unmoved_of(value: Any) -> Unmoved | Count:
    """The quick look at a value at each step; at a large container its number of items."""
    return Count(value) if _items(value) > LARGEST else Unmoved(value, looked_into=False)


def _items(value: Any) -> int:
    """Items of a container and of those in it, counted up to where they are too many."""
    if not isinstance(value, (list, tuple, dict, set, frozenset, deque)) or len(value) > LARGEST:
        return len(value) if isinstance(value, (list, tuple, dict, set, frozenset, deque)) else 0
    return len(value) + sum(map(_items, value.values() if isinstance(value, dict) else value))


def may_hold(value: Any) -> bool:
    """Whether attributes of ``value`` may be data that is not torch's or the standard library's."""
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] not in UNSEEN
    if isinstance(value, (type, FunctionType)):
        return value.__module__.partition(".")[0] not in UNSEEN
    return is_plain_object(value)  # what is read of modules is seen elsewhere


def home_of(owner: Any, key: str) -> tuple[Any, Callable[[Any], Any]]:
    """Where an attribute is, and how it is set; an empty dictionary where it is computed."""
    own = getattr(owner, "__dict__", {})
    if isinstance(owner, ModuleType):
        return own, partial(setattr, owner, key)
    if not isinstance(owner, type) and key in slots_of(type(owner)):
        return _Slot(owner), partial(object.__setattr__, owner, key)
    classes = (owner if isinstance(owner, type) else type(owner)).__mro__
    homes = [cls.__dict__ for cls in classes] if isinstance(owner, type) else [own, *(cls.__dict__ for cls in classes)]
    return _Inherited(homes), partial(_put, owner, key, key in homes[0])


def _put(owner: Any, key: str, own: bool, value: Any) -> None:
    """Set an attribute back; what was inherited is again."""
    if own:
        setattr(owner, key, value)
    elif key in getattr(owner, "__dict__", {}):
        delattr(owner, key)
