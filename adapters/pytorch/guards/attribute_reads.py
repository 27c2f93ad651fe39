"""Records which attributes a forward reads: of its modules, and of the plain objects that they hold.

A configuration has many attributes that no forward reads, and trainers write some of them between steps. Only what was
read can change a step.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .snapshots import MAX_NESTING, MAX_OBJECTS, attributes_of_object, is_plain_object

_OWN = frozenset(nn.Module().__dict__) - {"training"}
"""Attributes of every module, hooks among them; they are checked elsewhere."""
_ALL = "__dict__"
"""Read of an object: every attribute may have been."""
_HERE = str(Path(__file__).parents[1])
_WRAPPERS = (str(Path(torch.__file__).parent), functools.__file__)
"""Code that looks into ``__dict__`` of what it wraps or calls, and not for the forward."""

FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
"""The attributes that keep the hooks which run inside a forward; what their objects hold is read like an attribute."""

Read = tuple[str, str]
"""The path of a submodule, and the name of an attribute read from it."""


class AttributeReads:
    """What one forward reads.

    Attributes:
        of_modules: attributes of submodules, in the order of the first read.
        of_objects: by class, attributes of plain objects. A class is missing if reads of it cannot be told.
        written: attributes that the forward sets on submodules, and whether it does so before it reads them.
    """

    def __init__(self) -> None:
        self.of_modules: dict[Read, None] = {}
        self.of_objects: dict[type, dict[str, None]] = {}
        self.written: dict[Read, bool] = {}

    @contextmanager
    def recorded(self, module: nn.Module) -> Iterator[None]:
        """Record what is read of ``module``, its submodules, and the plain objects in their attributes, inside."""
        children = dict(module.named_modules())
        paths = {id(child): path for path, child in reversed(children.items())}
        for path, child in children.items():
            if _has_reads_of_its_own(child):
                self._note_module(path, child, _ALL)
            for key in FORWARD_HOOKS:
                if path and child.__dict__[key]:
                    self.of_modules[path, key] = None

        def note(child: nn.Module, name: str) -> None:
            path = paths.get(id(child))
            if path is not None and name not in _OWN:
                self._note_module(path, child, name)

        def note_written(child: nn.Module, name: str) -> None:
            path = paths.get(id(child))
            if path is not None:
                self.written.setdefault((path, name), (path, name) not in self.of_modules)

        with ExitStack() as patches:
            patches.enter_context(_noting_writes(note_written))
            patches.enter_context(_noting(nn.Module, note))
            for cls in _classes_of_objects(module):
                with suppress(TypeError):  # a class that cannot be changed: all attributes count
                    patches.enter_context(_noting(cls, self._note_object))
                    self.of_objects[cls] = {}
            yield
        for cls in [cls for cls, names in self.of_objects.items() if _ALL in names]:
            del self.of_objects[cls]

    def _note_module(self, path: str, child: nn.Module, name: str) -> None:
        for key in (name,) if name != _ALL else [key for key in child.__dict__ if key not in _OWN]:
            self.of_modules[path, key] = None

    def _note_object(self, value: Any, name: str) -> None:
        names = self.of_objects.get(type(value))
        if names is not None:
            names[name] = None


@contextmanager
def _noting(cls: type, note: Callable[[Any, str], None]) -> Iterator[None]:
    """Call ``note`` with the object and the name for each attribute read of an object of ``cls`` inside.

    Raises TypeError for a class that cannot be changed.
    """
    own = "__getattribute__" in cls.__dict__
    read: Any = cls.__getattribute__

    def noted(self: Any, name: str) -> Any:
        if (not name.startswith("__") or name == _ALL) and _is_read_by_forward(name):
            note(self, name)
        return read(self, name)

    cls.__getattribute__ = noted  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        if own:
            cls.__getattribute__ = read  # type: ignore[method-assign]
        else:
            del cls.__getattribute__


@contextmanager
def _noting_writes(note: Callable[[nn.Module, str], None]) -> Iterator[None]:
    """Call ``note`` with the module and the name for each attribute that code outside of torch sets inside."""
    write: Any = nn.Module.__setattr__

    def noted(self: nn.Module, name: str, value: Any) -> None:
        if not sys._getframe(1).f_code.co_filename.startswith((_HERE, _WRAPPERS[0])):
            note(self, name)
        write(self, name, value)

    nn.Module.__setattr__ = noted  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.__setattr__ = write  # type: ignore[method-assign]


def _is_read_by_forward(name: str) -> bool:
    """Whether the code that reads is neither this adapter's nor a wrapper's."""
    reader = sys._getframe(2).f_code.co_filename
    return not (reader.startswith(_HERE) or (name == _ALL and reader.startswith(_WRAPPERS)))


def _has_reads_of_its_own(child: nn.Module) -> bool:
    """Whether reads of a module's attributes do not come through Python's usual way."""
    before = type(child).__mro__[: type(child).__mro__.index(nn.Module)]
    return isinstance(child, torch.jit.ScriptModule) or any("__getattribute__" in cls.__dict__ for cls in before)


def _classes_of_objects(module: nn.Module) -> dict[type, None]:
    """The classes of the plain objects that the attributes of a module and its submodules hold."""
    found: dict[type, None] = {}
    seen: set[int] = set()

    def visit(value: Any, depth: int, objects: int) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, dict) and depth < MAX_NESTING:
            inner, depth = list(value.values()), depth + 1
        elif isinstance(value, (list, tuple, set, frozenset)) and depth < MAX_NESTING:
            inner, depth = list(value), depth + 1
        elif is_plain_object(value) and objects < MAX_OBJECTS:
            found[type(value)] = None
            inner, objects = list(attributes_of_object(value).values()), objects + 1
        else:
            return
        for item in inner:
            visit(item, depth, objects)

    for child in module.modules():
        for key, value in child.__dict__.items():
            if key not in _OWN or key in FORWARD_HOOKS:
                visit(value, 0, 0)
    return found
