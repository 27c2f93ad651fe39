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
from functools import partial
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import nn

from ..errors import UnsupportedModuleError
from .identity_check import Unmoved
from .rollback import contents_of
from .snapshots import drawn_within, is_data, same
from .sources import MISSING, UNSEEN, Count, Place, Variable, held_of, home_of, may_hold, unmoved_of

_OUTSIDE = (
    "count and log outside of the forward, or return it as an output; if it is a cache, run one forward before planning"
)
_CONTAINERS = (list, dict, set, deque, bytearray)


class OuterNames:
    """What was named, with its value before the code that names it ran."""

    def __init__(self) -> None:
        self._codes: dict[int, CodeType] = {}
        self._closures: dict[int, list[FunctionType]] = {}  # by code: functions with closures that were there before
        self._defaults: dict[int, list[FunctionType]] = {}  # and those with arguments that are containers by default
        self._places: dict[tuple[int, str], Place] = {}
        self._kept: list[Any] = []  # so that no number of an object is used twice
        self._watched: list[tuple[Any, str, str, Any, Any, Unmoved | Count]] = []
        self._ran = False
        self._gradients = False

    def changed(self) -> str | None:
        """What has changed since, in words; None where nothing has."""
        for home, key, told, before, held, unmoved in self._watched:
            value = home.get(key, MISSING)
            if not (value is before and unmoved) and not same(held_of(value), held):
                return told
        return None

    @contextmanager
    def recorded(self, module: nn.Module) -> Iterator[None]:
        """Trace ``module`` inside. Raises UnsupportedModuleError where code that runs changes what it names."""
        functions = [found for found in gc.get_objects() if type(found) is FunctionType]
        for function in functions:
            if function.__closure__:
                self._closures.setdefault(id(function.__code__), []).append(function)
        for function in filter(_has_containers, functions):
            self._defaults.setdefault(id(function.__code__), []).append(function)
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
                (p.home, p.key, p.told, p.value, p.held, unmoved_of(p.value))
                for p in self._places.values()
                if p.stays()
            ]
            for known in (self._codes, self._closures, self._defaults, self._places, self._kept):
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
                seen = frame.f_globals.get("__name__", "").partition(".")[0] not in UNSEEN
                if not (seen and _is_cleaning_up(frame)):
                    self._codes[id(code)] = code
                if seen and id(code) in self._codes:
                    caller = frame.f_back
                    self._gradients |= (
                        caller is not None and caller.f_code.co_filename == torch.autograd.function.__file__
                    )
                    self._note(frame)
            elif id(code) in self._closures and frame.f_globals.get("__name__", "").partition(".")[0] not in UNSEEN:
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
        for function in self._defaults.get(id(frame.f_code), ()):
            defaults = _containers_by_default(function)
            for name in list(defaults):
                told = f"the default of {name!r} in {function.__qualname__} of {where}"
                self._add(defaults, name, told, partial(defaults.__setitem__, name), function)
        for number, step in enumerate(steps):
            name = step.argval
            if step.opname in ("LOAD_GLOBAL", "STORE_GLOBAL"):
                value = names.get(name, MISSING)
                if value is not MISSING or step.opname == "STORE_GLOBAL":
                    self._add(names, name, f"global {name!r} of {where}", partial(names.__setitem__, name))
            elif step.opname == "LOAD_DEREF" and name in closed_over:
                value = closed_over[name]
            else:
                continue
            for after in steps[number + 1 :]:
                if after.opname not in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR") or not may_hold(value):
                    break
                name, key = f"{name}.{after.argval}", after.argval
                self._kept.append(value)
                home, put = home_of(value, key)
                self._add(home, key, f"{name!r} of {where}", put, value)
                value = home.get(key, None)

    def _closed_over(self, frame: FrameType) -> dict[str, Any]:
        """The variables that a function has of another one that ended before the trace; those with data are noted."""
        code, own = frame.f_code, frame.f_locals
        found = {name: own[name] for name in code.co_freevars if name in own}
        for function in self._closures.get(id(code), ()):
            cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
            homes = {name: Variable(cells[name]) for name in found}
            if all(homes[name].get(name, MISSING) is value for name, value in found.items()):
                where = f"{function.__qualname__} of {frame.f_globals.get('__name__', '?')}"
                for name, cell in cells.items():
                    put = partial(setattr, cell, "cell_contents")
                    self._add(homes[name], name, f"{name!r} around {where}", put, cell)
                return found
        return {}

    def _add(self, home: Any, key: str, told: str, put: Callable[[Any], Any], owner: Any = None) -> None:
        number = id(home if owner is None else owner), key
        value = home.get(key, MISSING)
        if number in self._places or not (value is MISSING or is_data(value)):
            return
        held = held_of(value)
        drawn = drawn_within(held)
        if drawn is not None:
            raise UnsupportedModuleError(
                f"the forward reads {told}, a {type(drawn).__name__}; a plan would repeat for ever what is drawn "
                "from it",
                remedy="draw outside and pass what is drawn as an argument",
            )
        self._kept.append(owner)
        contents = tuple(contents_of(value))
        self._places[number] = Place(home, key, told, value, held, held_of(value, states=True), put, contents)


def _containers_by_default(function: FunctionType) -> dict[str, Any]:
    """The containers that arguments of a function are where a call leaves them out."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    last_first = zip(reversed(names), reversed(function.__defaults__ or ()), strict=False)
    values = {**dict(last_first), **(function.__kwdefaults__ or {})}
    return {name: value for name, value in values.items() if isinstance(value, _CONTAINERS)}


def _has_containers(function: FunctionType) -> bool:
    """Whether `_containers_by_default` may have any: asked of every function there is, so in few steps."""
    for value in function.__defaults__ or ():
        if isinstance(value, _CONTAINERS):
            return True
    return function.__kwdefaults__ is not None and any(
        isinstance(value, _CONTAINERS) for value in function.__kwdefaults__.values()
    )


def _is_cleaning_up(frame: FrameType | None) -> bool:
    """Whether a frame is of a callback of the garbage collector or of a finalizer, which run whenever they do."""
    callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_code in callbacks:
            return True
        frame = frame.f_back
    return False
