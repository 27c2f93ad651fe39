"""Records which attributes a forward reads: of its modules, and of the objects that it comes to.

A configuration has many attributes that no forward reads, and trainers write some of them between steps. Only what was
read can change a step. A class is watched from the moment that the forward comes to an object of it: in an attribute,
a container, a method, a partial call, or a variable of the code that runs.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from torch import nn

from ..errors import HERE, TORCH, UnsupportedModuleError
from .globals_and_closures import SourceGuards
from .host_rng import is_generator
from .snapshots import MAX_NESTING, attributes_of_object, context_value, is_plain_object
from .sources import MAX_ITEMS, MISSING

_OWN = frozenset(nn.Module().__dict__) - {"training"}
"""Attributes of every module, hooks among them; they are checked elsewhere for the submodules of the module."""
ALL = "__dict__"
"""Read of an object: every attribute may have been."""
_WRAPPERS = (TORCH, functools.__file__)
"""Code that looks into ``__dict__`` of what it wraps or calls, and not for the forward."""

_MACHINERY = frozenset(
    {"dataclasses", "inspect", "typing", "contextlib", "weakref", "warnings", "logging", "unittest.mock"}
    | {"_frozen_importlib", "_frozen_importlib_external"}  # each import reads the spec of what it imports
)
"""Modules of the standard library whose objects describe code, log, or have whatever attribute is asked for."""

FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
"""The attributes that keep the hooks which run inside a forward; what their objects hold is read like an attribute."""
_PARTS = {types.MethodType: ("__self__",), functools.partial: ("func", "args", "keywords")}
"""What a callable takes along."""


@dataclass(frozen=True, eq=False, slots=True)
class Outside:
    """An object that is not reached from the module, and what code calls it."""

    value: Any
    name: str


Owner = str | tuple[Any, ...] | Outside
"""Whose attribute was read: a submodule's, by its path; that of an object in the module, by how it is reached from
there: a path, then names of attributes and, each in a tuple, keys of items; or that of an object outside.
"""
Read = tuple[Owner, str]
"""Whose attribute was read, and its name."""


def found(owner: Owner, children: Mapping[str, nn.Module]) -> Any:
    """The object that ``owner`` stands for in a module with these submodules; None if there is none."""
    if isinstance(owner, Outside):
        return owner.value
    path, *steps = (owner,) if isinstance(owner, str) else owner
    value: Any = children.get(path)
    try:
        for step in steps:
            value = value[step[0]] if isinstance(step, tuple) else getattr(value, step)
    except (LookupError, AttributeError, TypeError):
        return None
    return value


class AttributeReads:
    """What one forward reads.

    Attributes:
        reads: the attributes, in the order of the first read.
        written: attributes that the forward sets on submodules and on objects that are reached from them, and whether
            it does so before it reads them.
        before: while the forward is recorded, the objects whose attributes it sets, and what these were before; MISSING
            if they were not there.
    """

    def __init__(self) -> None:
        self.reads: dict[Read, None] = {}
        self.written: dict[Read, bool] = {}
        self.before: dict[Read, tuple[Any, Any]] = {}

    @contextmanager
    def recorded(self, module: nn.Module, sources: SourceGuards) -> Iterator[None]:
        """Record what is read of ``module``, its submodules and other objects inside; ``sources`` sees writes."""
        with ExitStack() as patches:
            recording = _Recording(self, module, sources, patches)
            sources.meet = recording.meet
            try:
                recording.begin()
                yield
            finally:
                sources.meet = _nothing
        recording.end()


def _nothing(_: Any, **__: Any) -> None:
    """What is met while no forward is recorded."""


class _Recording:
    """One recording of the reads of a module's forward."""

    def __init__(self, found: AttributeReads, module: nn.Module, sources: SourceGuards, patches: ExitStack) -> None:
        self._reads, self._written, self._before = found.reads, found.written, found.before
        self._module, self._sources, self._patches = module, sources, patches
        self._children = dict(module.named_modules())
        self._paths = {id(child): path for path, child in reversed(self._children.items())}
        self._thread = get_ident()
        self._origins: dict[int, tuple[Any, ...]] = {}  # by object: how it is reached from the module
        self._of_objects: dict[tuple[int, str], Any] = {}  # in the order of the first read
        self._watched: dict[type, bool] = {}
        self._seen: set[int] = set()
        self._names: dict[int, str] = {}
        self._alive: list[Any] = []  # what `_origins` is about, so that no id is used twice

    def begin(self) -> None:
        """Watch the classes of modules, and note what is read without a look-up of the forward's code."""
        self._patches.enter_context(_watching(nn.Module, self._note, self.meet))
        for path, child in self._children.items():
            if _has_reads_of_its_own(child):
                self._note_module(path, child, ALL)
            self._sources.add_names(type(child))
            for key in FORWARD_HOOKS:
                if path and child.__dict__[key]:
                    self._note_module(path, child, key)
                    self._meet(child.__dict__[key], (path, key))

    def end(self) -> None:
        """Add the reads of objects, which are known now to be reached from the module or not."""
        outside: dict[int, Outside] = {}
        for (number, key), value in self._of_objects.items():
            name = self._names.get(number, type(value).__name__)
            owner: Owner = outside.setdefault(number, Outside(value, name))
            origin = self._origins.get(number)
            if origin is not None and found(origin, self._children) is value:
                owner = origin
            self._reads[owner, key] = None
        for known in (self._of_objects, self._origins, self._alive, self._before):
            known.clear()

    def _note(self, owner: Any, name: str, *, written: bool) -> tuple[Any, ...] | None:
        """Note that an attribute is read, or ``written``. Returns how its value is reached from the module."""
        if get_ident() != self._thread:
            return None
        path = self._paths.get(id(owner))
        if path is not None:
            if written and not sys._getframe(2).f_code.co_filename.startswith(_WRAPPERS[0]):
                self._written.setdefault((path, name), (path, name) not in self._reads)
            if name in _OWN or written:
                return None
            self._note_module(path, owner, name)
            return path, name
        origin = self._origins.get(id(owner))
        if written and origin is not None and self._sources.is_old(owner):
            self._note_written(owner, origin, name)
        counts = not written and (origin is not None or self._sources.is_old(owner))
        for key, value in attributes_of_object(owner).items() if name == ALL else ((name, None),):
            self._sources.note(owner, key)
            self._meet(value, None if origin is None else (*origin, key))
            if counts:
                self._of_objects.setdefault((id(owner), key), owner)
        if counts:
            self._of_objects.setdefault((id(owner), name), owner)
        return None if origin is None else (*origin, name)

    def _note_written(self, owner: Any, origin: tuple[Any, ...], name: str) -> None:
        """Note that an attribute of an object is about to be set."""
        self._before.setdefault((origin, name), (owner, attributes_of_object(owner).get(name, MISSING)))
        read = (id(owner), name) in self._of_objects or (id(owner), ALL) in self._of_objects
        self._written.setdefault((origin, name), not read)

    def _note_module(self, path: str, child: nn.Module, name: str) -> None:
        for key in (name,) if name != ALL else [key for key in child.__dict__ if key not in _OWN]:
            self._reads[path, key] = None
            if name == ALL:
                self._meet(child.__dict__[key], (path, key))

    def meet(self, value: Any, origin: tuple[Any, ...] | None = None, name: str = "") -> None:
        """Watch the classes of a value, of the objects in its containers, and of what its calls take along.

        ``origin`` is how it is reached from the module, ``name`` what code calls it.
        """
        if get_ident() == self._thread:
            if name and is_plain_object(value):
                self._names.setdefault(id(value), name)
            self._meet(value, origin)

    def _meet(self, value: Any, origin: tuple[Any, ...] | None, depth: int = 0) -> None:
        if isinstance(value, (torch.Tensor, str, int, float, type(None))):
            return
        if isinstance(value, nn.Module):
            self._meet_module(value, origin)
        elif isinstance(value, (dict, list, tuple, deque, set, frozenset, types.MappingProxyType)):
            if depth < MAX_NESTING and len(value) <= MAX_ITEMS:
                for key, item in _items(value):
                    self._meet(item, None if origin is None or key is None else (*origin, (key,)), depth + 1)
        elif type(value) in _PARTS:
            for part in _PARTS[type(value)]:
                self._meet(getattr(value, part), None if origin is None else (*origin, part), depth + 1)
        elif isinstance(value, (weakref.ref, ContextVar)):
            for item in context_value(value) if isinstance(value, ContextVar) else [value()]:
                self._meet(item, None, depth + 1)
        elif isinstance(value, (type, types.ModuleType)):
            if origin is not None or depth == 0:  # not all classes of a registry somewhere else
                self._sources.add_names(value)
        elif is_plain_object(value) and not is_generator(value) and type(value).__module__ not in _MACHINERY:
            new = self._is_new(value, origin)
            if type(value) not in self._watched:
                self._watched[type(value)] = self._watch(type(value))
            if new and not self._watched[type(value)]:
                self._note(value, ALL, written=False)

    def _is_new(self, value: Any, origin: tuple[Any, ...] | None) -> bool:
        """Whether an object is met for the first time, or is known now to be reached from the module."""
        new = id(value) not in self._seen
        self._seen.add(id(value))
        if origin is not None and id(value) not in self._origins:
            self._origins[id(value)] = origin
            self._alive.append(value)
            return True
        return new

    def _meet_module(self, module: nn.Module, origin: tuple[Any, ...] | None) -> None:
        """Meet a module that is perhaps not registered."""
        if id(module) in self._paths or not self._is_new(module, origin):
            return
        if module._backward_hooks or module._backward_pre_hooks:
            raise UnsupportedModuleError(
                f"a {type(module).__name__} that the forward of {type(self._module).__name__} calls has a backward "
                "hook, which a planned step would not run",
                remedy="remove it by the handle that registered it",
            )
        self._sources.add_names(type(module))
        for name, child in module._modules.items():
            if child is not None:
                self._meet_module(child, None if origin is None else (*origin, name))

    def _watch(self, cls: type) -> bool:
        """Note reads and writes of the attributes of a class's objects; whether the class can be changed for that."""
        self._sources.add_names(cls)
        try:
            self._patches.enter_context(_watching(cls, self._note, self.meet))
        except (TypeError, AttributeError):
            return False
        return True


@contextmanager
def _watching(cls: type, note: Callable[..., Any], meet: Callable[..., Any]) -> Iterator[None]:
    """Call ``note`` for each attribute read or written of an object of ``cls`` inside, and ``meet`` for what was read.

    Raises TypeError for a class that cannot be changed.
    """
    read: Any = cls.__getattribute__
    write: Any = cls.__setattr__

    def noted(self: Any, name: str) -> Any:
        if (name.startswith("__") and name != ALL) or not _is_read_by_forward(name):
            return read(self, name)
        origin = note(self, name, written=False)
        value = read(self, name)
        if name != ALL:
            meet(value, origin)
        return value

    def written(self: Any, name: str, value: Any) -> None:
        if _is_read_by_forward(name):
            note(self, name, written=True)
        write(self, name, value)

    with ExitStack() as patches:
        for name, method in (("__getattribute__", noted), ("__setattr__", written)):
            patches.callback(_put_back, cls, name, cls.__dict__.get(name, _put_back))
            setattr(cls, name, method)
        yield


def _put_back(cls: type, name: str, method: Any) -> None:
    if method is not _put_back:
        setattr(cls, name, method)
    elif name in cls.__dict__:
        delattr(cls, name)


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    """The items of a container with their keys; None is the key of what has none."""
    if isinstance(value, (dict, types.MappingProxyType)):
        return list(value.items())
    if isinstance(value, (list, tuple, deque)):
        return enumerate(list(value))
    return [(None, item) for item in value]


def _is_read_by_forward(name: str) -> bool:
    """Whether the code that reads is neither this adapter's nor a wrapper's."""
    reader = sys._getframe(2).f_code.co_filename
    return not (reader.startswith(HERE) or (name == ALL and reader.startswith(_WRAPPERS)))


def _has_reads_of_its_own(child: nn.Module) -> bool:
    """Whether reads of a module's attributes do not come through Python's usual way."""
    before = type(child).__mro__[: type(child).__mro__.index(nn.Module)]
    return isinstance(child, torch.jit.ScriptModule) or any("__getattribute__" in cls.__dict__ for cls in before)
