"""What the code of a forward names outside of its modules: globals, closures, data of classes and of other objects.

A planned step repeats what the forward did with them. The functions that run while a forward is traced are noted, and
what their code names is watched where it is data: numbers, texts, None, small containers of these. Code of torch and
of the standard library is not looked at, nor is what a name leads to through a call or a variable.
"""

from __future__ import annotations

import dis
import gc
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import CellType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from .contents import Content, contents_of, put_back
from .snapshots import drawn_within, is_data, is_plain_object, plain_part, same, slots_of, snapshot
from .unmoved import Unmoved
from .unsupported import UnsupportedModuleError

LARGEST = 1024
"""Items of a container that are compared; of a larger one the number of items is."""
_UNSEEN = frozenset(
    {*sys.stdlib_module_names, "torch", "ogc_plan", "numpy", "sympy", "mpmath", "triton", "functorch", "torchgen"}
)
_OUTSIDE = (
    "count and log outside of the forward, or return it as an output; if it is a cache, run one forward before planning"
)
_MISSING = object()


class _Variable:
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
class _Place:
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
        now = self.home.get(self.key, _MISSING)
        if (self.value is None or self.value is _MISSING) and now is not _MISSING and not is_data(now):
            return False
        return not same(_held(now, states=True), self.states)

    def stays(self) -> bool:
        """Whether the name stands for what it did."""
        return self.home.get(self.key, _MISSING) is self.value

    def restore(self) -> None:
        for container, content in self.contents:
            put_back(container, content)
        if self.value is not _MISSING:
            self.put(self.value)
        elif isinstance(self.home, dict):
            self.home.pop(self.key, None)


class OuterNames:
    """What was named, with its value before the code that names it ran."""

    def __init__(self) -> None:
        self._codes: dict[int, CodeType] = {}
        self._closures: dict[int, list[FunctionType]] = {}  # by code: functions with closures that were there before
        self._places: dict[tuple[int, str], _Place] = {}
        self._kept: list[Any] = []  # so that no number of an object is used twice
        self._watched: list[tuple[Any, str, str, Any, Any, Unmoved | _Count]] = []
        self._ran = False
        self._gradients = False

    def changed(self) -> str | None:
        """What has changed since, in words; None where nothing has."""
        for home, key, told, before, held, unmoved in self._watched:
            value = home.get(key, _MISSING)
            if not (value is before and unmoved) and not same(_held(value), held):
                return told
        return None

    @contextmanager
    def recorded(self, module: nn.Module) -> Iterator[None]:
        """Trace ``module`` inside. Raises UnsupportedModuleError where code that runs changes what it names."""
        for found in gc.get_objects():
            if type(found) is FunctionType and found.__closure__:
                self._closures.setdefault(id(found.__code__), []).append(found)
        before, collects = sys.gettrace(), gc.isenabled()
        gc.disable()  # callbacks of the collector are not the forward's
        try:
            yield
        finally:
            sys.settrace(before)
            if collects:
                gc.enable()
            moved = [place for place in self._places.values() if place.moved()]
            for place in moved:
                place.restore()
            self._watched = [
                (p.home, p.key, p.told, p.value, p.held, _unmoved(p.value)) for p in self._places.values() if p.stays()
            ]
            for known in (self._codes, self._closures, self._places, self._kept):
                known.clear()
        for place in moved:
            raise UnsupportedModuleError(
                f"the forward of {type(module).__name__} changes {place.told}, which a planned step would not",
                remedy=_OUTSIDE,
            )

    def around(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """``forward``, looked at in the first call that comes to its end, for looking takes time.

        Beyond it where it has backwards written by hand, which run later.
        """

        def noted(*args: Any, **kwargs: Any) -> Any:
            if self._ran:
                return forward(*args, **kwargs)
            before = sys.gettrace()
            sys.settrace(self._called(before))
            try:
                made = forward(*args, **kwargs)
            finally:
                if not self._gradients:
                    sys.settrace(before)
            self._ran = True
            return made

        return noted

    def _called(self, before: Any) -> Callable[[FrameType, str, Any], Any]:
        def called(frame: FrameType, event: str, arg: Any) -> Any:
            code = frame.f_code
            if id(code) not in self._codes:
                seen = frame.f_globals.get("__name__", "").partition(".")[0] not in _UNSEEN
                if not (seen and _is_cleaning_up(frame)):
                    self._codes[id(code)] = code
                if seen and id(code) in self._codes:
                    caller = frame.f_back
                    self._gradients |= (
                        caller is not None and caller.f_code.co_filename == torch.autograd.function.__file__
                    )
                    self._note(frame)
            elif id(code) in self._closures and frame.f_globals.get("__name__", "").partition(".")[0] not in _UNSEEN:
                self._closed_over(frame)
            if before is None:
                return None
            local = before(frame, event, arg)
            if sys.gettrace() is not called:  # a tracer written in C puts itself in our place
                sys.settrace(called)
            return local

        return called

    def _note(self, frame: FrameType) -> None:
        """Look at everything that the code of ``frame`` names, before it runs."""
        where, names = frame.f_globals.get("__name__", "?"), frame.f_globals
        steps = [step for step in dis.get_instructions(frame.f_code) if step.opname not in ("COPY", "DUP_TOP")]
        closed_over = self._closed_over(frame)
        for number, step in enumerate(steps):
            name = step.argval
            if step.opname in ("LOAD_GLOBAL", "STORE_GLOBAL"):
                value = names.get(name, _MISSING)
                if value is not _MISSING or step.opname == "STORE_GLOBAL":
                    self._add(names, name, f"global {name!r} of {where}", partial(names.__setitem__, name))
            elif step.opname == "LOAD_DEREF" and name in closed_over:
                value = closed_over[name]
            else:
                continue
            for after in steps[number + 1 :]:
                if after.opname not in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR") or not _may_hold(value):
                    break
                name, key = f"{name}.{after.argval}", after.argval
                self._kept.append(value)
                home, put = _home_of(value, key)
                self._add(home, key, f"{name!r} of {where}", put, value)
                value = home.get(key, None)

    def _closed_over(self, frame: FrameType) -> dict[str, Any]:
        """The variables that a function has of another one that ended before the trace; those with data are noted."""
        code, own = frame.f_code, frame.f_locals
        found = {name: own[name] for name in code.co_freevars if name in own}
        for function in self._closures.get(id(code), ()):
            cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
            homes = {name: _Variable(cells[name]) for name in found}
            if all(homes[name].get(name, _MISSING) is value for name, value in found.items()):
                where = f"{function.__qualname__} of {frame.f_globals.get('__name__', '?')}"
                for name, cell in cells.items():
                    put = partial(setattr, cell, "cell_contents")
                    self._add(homes[name], name, f"{name!r} around {where}", put, cell)
                return found
        return {}

    def _add(self, home: Any, key: str, told: str, put: Callable[[Any], Any], owner: Any = None) -> None:
        number = id(home if owner is None else owner), key
        value = home.get(key, _MISSING)
        if number in self._places or not (value is _MISSING or is_data(value)):
            return
        held = _held(value)
        drawn = drawn_within(held)
        if drawn is not None:
            raise UnsupportedModuleError(
                f"the forward reads {told}, a {type(drawn).__name__}; a plan would repeat for ever what is drawn "
                "from it",
                remedy="draw outside and pass what is drawn as an argument",
            )
        self._kept.append(owner)
        contents = tuple(contents_of(value))
        self._places[number] = _Place(home, key, told, value, held, _held(value, states=True), put, contents)


def _is_cleaning_up(frame: FrameType | None) -> bool:
    """Whether a frame is of a callback of the garbage collector or of a finalizer, which run whenever they do."""
    callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_code in callbacks:
            return True
        frame = frame.f_back
    return False


def _held(value: Any, *, states: bool = False) -> Any:
    """A snapshot of the data in a value; of a large container the number of its items."""
    if _items(value) > LARGEST:
        return f"{len(value)} items"
    return snapshot(plain_part(value), states=states, looked_into=False)


class _Count:
    """True as long as a large container has as many items as it had."""

    def __init__(self, value: Any) -> None:
        self._value, self._count = value, len(value)

    def __bool__(self) -> bool:
        return len(self._value) == self._count


def _unmoved(value: Any) -> Unmoved | _Count:
    return _Count(value) if _items(value) > LARGEST else Unmoved(value, looked_into=False)


def _items(value: Any) -> int:
    """Items of a container and of those in it, counted up to where they are too many."""
    if not isinstance(value, (list, tuple, dict, set, frozenset, deque)) or len(value) > LARGEST:
        return len(value) if isinstance(value, (list, tuple, dict, set, frozenset, deque)) else 0
    return len(value) + sum(map(_items, value.values() if isinstance(value, dict) else value))


def _may_hold(value: Any) -> bool:
    """Whether attributes of ``value`` may be data that is not torch's or the standard library's."""
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] not in _UNSEEN
    if isinstance(value, (type, FunctionType)):
        return value.__module__.partition(".")[0] not in _UNSEEN
    return is_plain_object(value)  # what is read of modules is seen elsewhere


def _home_of(owner: Any, key: str) -> tuple[Any, Callable[[Any], Any]]:
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
