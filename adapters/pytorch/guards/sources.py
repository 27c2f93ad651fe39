"""Sources outside of a module that code reads data from: globals, closure cells, attributes of classes and objects."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import CellType, FunctionType, ModuleType
from typing import Any

from .rollback import Saved, roll_back
from .snapshots import IdentityCheck, data_part, equal_snapshots, is_data, is_plain_object, slots_of, snapshot

MAX_ITEMS = 1024
"""Containers up to this many items are compared by content, larger ones by their number of items."""
SKIPPED_PACKAGES = frozenset(
    {*sys.stdlib_module_names, "torch", "ogc_plan", "numpy", "sympy", "mpmath", "triton", "functorch", "torchgen"}
)
"""Packages whose code and data are not looked at."""
MISSING = object()


class ClosureCell:
    """A closure's variable, read like a dictionary's entry."""

    def __init__(self, cell: CellType) -> None:
        self._cell = cell

    def get(self, _: str, missing: Any) -> Any:
        """The variable's value."""
        try:
            return self._cell.cell_contents
        except ValueError:  # an empty cell
            return missing


class _Lookup:
    """An attribute found along a method resolution order, read like a dictionary's entry."""

    def __init__(self, namespaces: list[Any]) -> None:
        self._namespaces = namespaces

    def get(self, key: str, missing: Any) -> Any:
        """The attribute's value."""
        for namespace in self._namespaces:
            if key in namespace:
                return namespace[key]
        return missing


class _Slot:
    """An attribute in a slot, read like a dictionary's entry."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def get(self, key: str, missing: Any) -> Any:
        """The attribute's value."""
        return getattr(self._owner, key, missing)


@dataclass(frozen=True, slots=True)
class Source:
    """One name that code reads: ``namespace.get(key)``, with the value it had before the code ran.

    ``data`` is a snapshot of the value, ``states`` the same with states of random generators. ``assign`` sets the name,
    ``saved`` is the content of everything in the value that can be changed in place.
    """

    namespace: Any
    key: str
    description: str
    value: Any
    data: Any
    states: Any
    assign: Callable[[Any], Any]
    saved: tuple[Saved, ...]

    def changed(self) -> bool:
        """Whether the value changed. A None filled with a non-data object (a cache, a logger) is not a change."""
        now = self.namespace.get(self.key, MISSING)
        if (self.value is None or self.value is MISSING) and now is not MISSING and not is_data(now):
            return False
        return not equal_snapshots(data_snapshot(now, generator_states=True), self.states)

    def is_same_object(self) -> bool:
        """Whether the name still refers to the same object."""
        return self.namespace.get(self.key, MISSING) is self.value

    def restore(self) -> None:
        """Put the value and its content back."""
        for container, content in self.saved:
            roll_back(container, content)
        if self.value is not MISSING:
            self.assign(self.value)
        elif isinstance(self.namespace, dict):
            self.namespace.pop(self.key, None)
        elif isinstance(self.namespace, _Lookup):
            self.assign(MISSING)


def data_snapshot(value: Any, *, generator_states: bool = False) -> Any:
    """A snapshot of the data in a value; for a large container its number of items."""
    if _count_items(value) > MAX_ITEMS:
        return f"{len(value)} items"
    return snapshot(data_part(value), generator_states=generator_states, into_objects=False)


def quick_check(value: Any) -> IdentityCheck | bool:
    """The check of a value that each step makes first; false for a large container, whose snapshot is quick itself."""
    if _count_items(value) > MAX_ITEMS:
        return False
    check = IdentityCheck(value)
    return check if check.has_content else True


def _count_items(value: Any) -> int:
    """The items of a container and of the containers in it; counting stops in one that is too large."""
    if not isinstance(value, (list, tuple, dict, set, frozenset, deque)):
        return 0
    if len(value) > MAX_ITEMS:
        return len(value)
    return len(value) + sum(map(_count_items, value.values() if isinstance(value, dict) else value))


def is_skipped(module_name: str) -> bool:
    """Whether a module belongs to a package whose code and data are not looked at, or is that of a named tuple's code.

    That code takes values and makes a tuple of them. Torch gives it the variables of whole modules of its own.
    """
    return module_name.partition(".")[0] in SKIPPED_PACKAGES or module_name.startswith("namedtuple_")


def may_have_data(value: Any) -> bool:
    """Whether attributes of ``value`` may be the user's data. Attributes of modules are guarded elsewhere."""
    if isinstance(value, ModuleType):
        return not is_skipped(value.__name__)
    if isinstance(value, (type, FunctionType)):
        return not is_skipped(value.__module__)
    return is_plain_object(value)


def attribute_source(owner: Any, key: str) -> tuple[Any, Callable[[Any], Any]]:
    """Where an attribute is read from, and how it is set. A computed attribute is read as missing."""
    own = getattr(owner, "__dict__", {})
    if isinstance(owner, ModuleType):
        return own, partial(setattr, owner, key)
    if not isinstance(owner, type) and key in slots_of(type(owner)):
        return _Slot(owner), partial(object.__setattr__, owner, key)
    classes = [cls.__dict__ for cls in (owner if isinstance(owner, type) else type(owner)).__mro__]
    namespaces = classes if isinstance(owner, type) else [own, *classes]
    return _Lookup(namespaces), partial(_restore_attribute, owner, key, key in namespaces[0])


def _restore_attribute(owner: Any, key: str, own: bool, value: Any) -> None:
    """Restore an attribute; if it was inherited, delete the instance's copy."""
    if own:
        setattr(owner, key, value)
    elif key in getattr(owner, "__dict__", {}):
        delattr(owner, key)
