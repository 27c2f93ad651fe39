"""Guards on data that the code of a forward names outside of its modules: globals, closures, classes, other objects.

While the forward is traced, every function that runs is recorded; the names in its code that refer to data become
sources. Code of torch and of the standard library is skipped, and data reached through a call or a local variable.
"""

from __future__ import annotations

import dis
import functools
import gc
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from ....planner.limits import gc_paused
from ..errors import HERE, UnsupportedModuleError
from .rollback import save
from .running_functions import Ages, RunningFunctions
from .snapshots import IdentityCheck, equal_snapshots, is_data, refuse_iterator
from .sources import (
    MISSING,
    ClosureCell,
    Source,
    attribute_source,
    data_snapshot,
    is_skipped,
    may_have_data,
    quick_check,
)

_REMEDY = (
    "count and log outside of the forward, or return it as an output; if it is a cache, run one forward before planning"
)
_CALLED = (FunctionType, BuiltinFunctionType, MethodType, functools.partial, type)
"""Compared by identity: another function under a name makes another step."""
_IMPORTS = "<frozen importlib"
_TRACING = f"{HERE}/capture"
"""The files of the code that traces."""
_CONTAINERS = (list, dict, set, deque, bytearray)


def _is_of_autograd_function(frame: FrameType) -> bool:
    """Whether a method of a ``torch.autograd.Function`` runs: torch calls it, or its first argument says so."""
    caller, code = frame.f_back, frame.f_code
    if caller is not None and caller.f_code.co_filename == torch.autograd.function.__file__:
        return True
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    return isinstance(first, torch.autograd.function.FunctionCtx)


class SourceGuards:
    """The sources that one forward read, and whether they still have the values they had before it."""

    def __init__(self) -> None:
        self._codes: dict[int, CodeType] = {}
        self._done: set[int] = set()  # codes that need not be looked at again: recorded or skipped, and no closures
        self._sources: dict[tuple[int, str], Source] = {}
        self._kept: list[Any] = []  # keeps owners alive, so that no id is used twice
        self._ages = Ages()
        self._functions = RunningFunctions(self._ages)
        self._names: set[str] = set()  # that appear in the code that ran, among them those of attributes
        self._by_name: set[tuple[int, str]] = set()  # sources that count only if the code names them
        self._of_objects: set[tuple[int, str]] = set()  # sources that are guarded as attributes that were read
        self.meet: Callable[..., None] = lambda _, **__: None  # called with what the code's variables hold
        self._guards: list[tuple[Any, str, str, Any, Any, IdentityCheck | bool]] = []
        self._ran = False
        self._has_backward_code = False

    def changed(self) -> str | None:
        """A description of a source that changed since the trace; None if none did."""
        for namespace, key, description, before, data, check in self._guards:
            value = namespace.get(key, MISSING)
            if not (value is before and check) and not equal_snapshots(data_snapshot(value), data):
                return description
        return None

    @contextmanager
    def recorded(self, module: nn.Module) -> Iterator[None]:
        """Trace ``module`` inside; changed sources are restored at the end.

        Raises UnsupportedModuleError if the code that ran changed a source.
        """
        before = sys.gettrace()
        try:
            # Callbacks of the collector are not part of the forward. On a card autograd would run a backward written by
            # hand on a thread of its own, which is not recorded.
            with gc_paused(), self._ages.told_apart(), torch.autograd.set_multithreading_enabled(False):
                yield
        finally:
            sys.settrace(before)
            self._functions.end()
            changed = [source for source in self._sources.values() if source.changed()]
            for source in changed:
                source.restore()
            self._guards = [
                (s.namespace, s.key, s.description, s.value, s.data, quick_check(s.value))
                for number, s in self._sources.items()
                if s.is_same_object()
                and number not in self._of_objects
                and (number not in self._by_name or s.key in self._names)
            ]
            for known in (self._codes, self._done, self._sources, self._kept, self._names,
                          self._by_name, self._of_objects):  # fmt: skip
                known.clear()
        for source in changed:
            raise UnsupportedModuleError(
                f"the forward of {type(module).__name__} changes {source.description}, which a planned step would not",
                remedy=_REMEDY,
            )

    def wrap(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """``forward`` with its functions recorded.

        Recording is slow, so it stops after the first call that completes. It goes on only if the forward has
        backwards written by hand, which run later.
        """

        def recorded(*args: Any, **kwargs: Any) -> Any:
            if self._ran:
                return forward(*args, **kwargs)
            before = sys.gettrace()
            sys.settrace(self._tracer(before))
            try:
                result = forward(*args, **kwargs)
            finally:
                if not self._has_backward_code:
                    sys.settrace(before)
            self._ran = True
            return result

        return recorded

    def _tracer(self, before: Any) -> Callable[[FrameType, str, Any], Any]:
        """A trace function that records each function called, and then calls the tracer that was set ``before``."""

        codes, done = self._codes, self._done

        def tracer(frame: FrameType, event: str, arg: Any) -> Any:
            code = frame.f_code
            if before is None and id(code) in done:  # most calls of a forward: those of torch's own functions
                return None
            if id(code) not in codes:
                skipped = is_skipped(frame.f_globals.get("__name__", ""))
                if skipped or not _is_aside(frame):
                    codes[id(code)] = code
                if not skipped and id(code) in codes:
                    self._has_backward_code |= _is_of_autograd_function(frame)
                    self._record(frame)
                if skipped and not code.co_freevars:
                    done.add(id(code))
            elif not is_skipped(frame.f_globals.get("__name__", "")):
                self._record_closure(frame)
            if before is None:
                return None
            local = before(frame, event, arg)
            if sys.gettrace() is not tracer:  # a tracer written in C replaces this one
                sys.settrace(tracer)
            return local

        return tracer

    def _record(self, frame: FrameType) -> None:
        """Add every source that the code of ``frame`` names, before it runs."""
        where, names = frame.f_globals.get("__name__", "?"), frame.f_globals
        self._names.update(frame.f_code.co_names, (text for text in frame.f_code.co_consts if isinstance(text, str)))
        steps = [step for step in dis.get_instructions(frame.f_code) if step.opname not in ("COPY", "DUP_TOP")]
        closure = self._record_closure(frame)
        for function in self._functions.of(frame):
            defaults = _container_defaults(function)
            for name in list(defaults):
                description = f"the default of {name!r} in {function.__qualname__} of {where}"
                self._add(defaults, name, description, functools.partial(defaults.__setitem__, name), function)
        for number, step in enumerate(steps):
            name = step.argval
            if step.opname in ("LOAD_GLOBAL", "STORE_GLOBAL"):
                value = names.get(name, MISSING)
                if value is not MISSING or step.opname == "STORE_GLOBAL":
                    self._add(names, name, f"global {name!r} of {where}", functools.partial(names.__setitem__, name))
            elif step.opname == "LOAD_DEREF" and name in closure:
                value = closure[name]
            elif step.opname == "IMPORT_NAME" and name in sys.modules and not is_skipped(name):
                self.add_names(sys.modules[name])
                continue
            else:
                continue
            for after in steps[number + 1 :]:
                if after.opname not in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR") or not may_have_data(value):
                    break
                self.meet(value, name=name)
                name, key = f"{name}.{after.argval}", after.argval
                self._kept.append(value)
                namespace, assign = attribute_source(value, key)
                self._add(namespace, key, f"{name!r} of {where}", assign, value)
                value = namespace.get(key, None)
            self.meet(value, name=name)

    def _record_closure(self, frame: FrameType) -> dict[str, Any]:
        """The variables of a closure made before the trace; those with data become sources."""
        code, own = frame.f_code, frame.f_locals
        for value in own.values():
            self.meet(value)
        found, held = {name: own[name] for name in code.co_freevars if name in own}, {}
        for function in self._functions.of(frame) if found else ():
            cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
            variables = {name: ClosureCell(cells[name]) for name in found}
            if all(variables[name].get(name, MISSING) is value for name, value in found.items()):
                where = f"{function.__qualname__} of {frame.f_globals.get('__name__', '?')}"
                for name, cell in cells.items():
                    assign = functools.partial(setattr, cell, "cell_contents")
                    self._add(variables[name], name, f"{name!r} around {where}", assign, cell)
                held = found
        return held

    def _add(self, namespace: Any, key: str, description: str, assign: Callable[[Any], Any], owner: Any = None) -> None:
        number = id(namespace if owner is None else owner), key
        value = namespace.get(key, MISSING)
        self._by_name.discard(number)
        self._of_objects.discard(number)
        if number in self._sources or not (value is MISSING or is_data(value) or isinstance(value, _CALLED)):
            return
        data = data_snapshot(value)
        refuse_iterator(data, f"the forward reads {description}")
        self._kept.append(owner)
        states = data_snapshot(value, generator_states=True)
        self._sources[number] = Source(namespace, key, description, value, data, states, assign, tuple(save(value)))

    def is_old(self, value: Any) -> bool:
        """Whether an object with attributes of its own is older than the trace."""
        return self._ages.is_old(value)

    def note(self, owner: Any, key: str) -> None:
        """Add an attribute of an object that the code reads or writes, before that; its reads are guarded elsewhere."""
        if (id(owner), key) not in self._sources and self.is_old(owner):
            namespace, assign = attribute_source(owner, key)
            self._add(namespace, key, f"{key!r} of a {type(owner).__name__}", assign, owner)
            self._of_objects.add((id(owner), key))

    def add_names(self, owner: Any) -> None:
        """Add the data in a class or a Python module; what no code names of it, with an attribute, is not guarded."""
        if (id(owner), "") in self._by_name or not may_have_data(owner):
            return
        self._by_name.add((id(owner), ""))
        spaces = [space for space in (owner.__mro__ if isinstance(owner, type) else (owner,)) if may_have_data(space)]
        for key in {key: None for space in spaces for key in vars(space) if not key.startswith("__")}:
            if (id(owner), key) not in self._sources:
                namespace, assign = attribute_source(owner, key)
                self._add(namespace, key, repr(f"{owner.__name__}.{key}"), assign, owner)
                self._by_name.add((id(owner), key))
                inner = namespace.get(key, None)
                if isinstance(inner, type) and inner.__qualname__.startswith(f"{getattr(owner, '__qualname__', '')}."):
                    self.add_names(inner)  # a class that is written inside of this one


def _container_defaults(function: FunctionType) -> dict[str, Any]:
    """The default arguments of a function that are containers."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    positional = zip(reversed(names), reversed(function.__defaults__ or ()), strict=False)
    values = {**dict(positional), **(function.__kwdefaults__ or {})}
    return {name: value for name, value in values.items() if isinstance(value, _CONTAINERS)}


def _is_aside(frame: FrameType | None) -> bool:
    """Whether a frame of a forward runs in an import, a callback of the collector, a finalizer or a logger's handlers.

    What surrounds the trace does not count: a script may train while it is imported.
    """
    callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None:
        code, file = frame.f_code, frame.f_code.co_filename
        if file.startswith(_TRACING):
            return False
        if code.co_name == "__del__" or code in callbacks or file == logging.__file__ or file.startswith(_IMPORTS):
            return True
        frame = frame.f_back
    return False
