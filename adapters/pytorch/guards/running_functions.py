"""The functions that a forward runs, found from their frames, and the age of the objects that it meets.

Looking through every object of a process takes longer than tracing a small module does. So the age of an object is
asked of the collector's youngest generation, and a function without a closure is looked for under its own name. The
first code that is left is looked for alone, in half the time; for more of them a table of all functions is made.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any

from .frozen_objects import FROZEN

_WITHOUT_DEFAULTS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<module>"})
"""Code that is made and run in one place."""


class Ages:
    """Tells objects made before a trace from those made in it.

    With the collector off, what is made stays in its youngest generation, but for what a forward's own call of the
    collector moves.
    """

    def __init__(self) -> None:
        self._older: dict[int, Any] = {}  # kept alive, so that nothing new gets one of these numbers
        self._newer: set[int] = set()

    @contextmanager
    def told_apart(self) -> Iterator[None]:
        """What is alive now is old inside; the collector must be off."""
        gc.collect(0)
        gc.callbacks.append(self._collecting)
        try:
            yield
        finally:
            gc.callbacks.remove(self._collecting)
            self._older.clear()
            self._newer.clear()

    def newer(self) -> set[int]:
        """The ids of what the trace has made so far, some of it gone by now."""
        self._newer.update(map(id, gc.get_objects(generation=0)))
        return self._newer

    def _collecting(self, phase: str, _: Any) -> None:
        if phase == "start":
            self.newer()

    def is_old(self, value: Any) -> bool:
        """Whether an object that can refer to others is older than the trace."""
        number = id(value)
        if number not in self._older and number not in self._newer:
            if number in map(id, gc.get_objects(generation=0)) or not gc.is_tracked(value):
                self._newer.add(number)
            else:
                self._older[number] = value
        return number in self._older


class RunningFunctions:
    """Finds the functions that may run in a frame; those made in the trace are left out."""

    def __init__(self, ages: Ages) -> None:
        self._ages = ages
        self._older: dict[int, list[FunctionType]] | None = None  # those that hold data, by code
        self._first: tuple[CodeType, list[FunctionType]] | None = None

    def end(self) -> None:
        """Let go of the functions."""
        self._older = None
        self._first = None

    def of(self, frame: FrameType) -> list[FunctionType]:
        """The functions with data of their own, in closures and defaults, that have the code of ``frame``."""
        code = frame.f_code
        if code.co_name in _WITHOUT_DEFAULTS or not (code.co_freevars or code.co_argcount or code.co_kwonlyargcount):
            return []
        named = [] if set(code.co_freevars) - {"__class__"} else list(_under_its_name(frame))
        if named:
            return [function for function in named if self._ages.is_old(function)]
        return list(dict.fromkeys((*filter(_holds_data, FROZEN.of(code)), *self._not_frozen(code))))

    def _not_frozen(self, code: CodeType) -> list[FunctionType]:
        if self._older is None and self._first is None:
            self._first = code, self._with_data(gc.get_referrers(code)).get(id(code), [])
        if self._first is not None and self._first[0] is code:
            return self._first[1]
        if self._older is None:
            self._older = self._with_data(gc.get_objects())
        return self._older.get(id(code), [])

    def _with_data(self, among: list[Any]) -> dict[int, list[FunctionType]]:
        """By their code, the functions among these objects that hold data.

        One that is made in the trace is not among them: it would keep tensors of the trace alive.
        """
        newer = self._ages.newer()
        found: dict[int, list[FunctionType]] = {}
        for function in [value for value in among if type(value) is FunctionType]:
            if _holds_data(function) and id(function) not in newer:
                found.setdefault(id(function.__code__), []).append(function)
        return found


def _holds_data(function: FunctionType) -> bool:
    return bool(function.__closure__ or function.__defaults__ or function.__kwdefaults__)


def _under_its_name(frame: FrameType) -> Iterator[FunctionType]:
    """The functions with a frame's code: in the classes of its first argument, and where its qualified name leads."""
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    spaces = [vars(cls) for cls in (*type(first).__mro__, *(first.__mro__ if isinstance(first, type) else ()))]
    *outer, name = getattr(code, "co_qualname", code.co_name).split(".")  # Python 3.10 has no qualified name
    value: Any = frame.f_globals
    for part in outer:
        value = vars(value[part]) if isinstance(value.get(part), type) else {}
    for space in (value, *spaces):
        held = space.get(name)
        for function in (held, *(getattr(held, key, None) for key in ("__func__", "fget", "__wrapped__"))):
            if isinstance(function, FunctionType) and function.__code__ is code:
                yield function
