"""The functions that `gc.freeze` hides from the collector's lists of objects.

They are looked for once: what is frozen stays so until `gc.unfreeze` shows all of it. Then some are found twice.
"""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from types import CodeType, FunctionType
from typing import Any

MEMOISED = functools._lru_cache_wrapper


class CollectorCounts:
    """What the collector has counted by now. To freeze sets its counts to zero (CPython up to 3.13, gc_freeze)."""

    def __init__(self) -> None:
        gc.collect(1)  # counts as one in the oldest generation: from here on zero is not what was there
        self._full, self._middle, self._since_full = self._now()

    @staticmethod
    def _now() -> tuple[int, int, int]:
        """The full collections, those of the middle generation, and how many of these since the last full one."""
        _, middle, full = gc.get_stats()
        return full["collections"], middle["collections"], gc.get_count()[2]

    def go_on(self) -> bool:
        """Whether it is certain that nothing was frozen since; it is not after a full collection."""
        if sys.version_info >= (3, 14):
            return False
        full, middle, since_full = self._now()
        return full == self._full and since_full - self._since_full == middle - self._middle


class FrozenFunctions:
    """The frozen functions of this process; `look` is called before they are asked for."""

    def __init__(self) -> None:
        self._of_code: dict[int, list[weakref.ref[FunctionType]]] = {}
        self._memoised: list[weakref.ref[Any]] = []
        self._seen: list[None] | None = None  # made after the last look: in the lists until more is frozen
        self._counts: CollectorCounts | None = None  # since then

    def look(self) -> None:
        """Look for what was frozen since the last look; not in a trace, as what is alive is frozen then."""
        if self._seen is None:
            if gc.get_freeze_count() == 0:  # which takes a fraction of a second otherwise: it counts them
                return
        elif self._counts is not None and self._counts.go_on():
            return
        elif any(each is self._seen for each in gc.get_objects()):
            self._counts = CollectorCounts()
            return
        gc.collect()  # garbage would be frozen, too
        gc.unfreeze()
        objects = gc.get_objects()
        gc.freeze()  # with what was made since: there is no way to freeze some objects alone
        self._of_code = {}
        for function in [each for each in objects if type(each) is FunctionType]:
            self._of_code.setdefault(id(function.__code__), []).append(weakref.ref(function))
        self._memoised = [weakref.ref(each) for each in objects if type(each) is MEMOISED]
        self._seen = [None]
        self._counts = CollectorCounts()

    def of(self, code: CodeType) -> list[FunctionType]:
        """Those with a code."""
        functions = [reference() for reference in self._of_code.get(id(code), ())]
        return [function for function in functions if function is not None and function.__code__ is code]

    def memoised(self) -> list[Any]:
        """Those that ``functools.lru_cache`` made."""
        return [function for reference in self._memoised if (function := reference()) is not None]


FROZEN = FrozenFunctions()
