"""The only door to numba: `compiled`, `inlined` and `allocating` make machine code and remember it between runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from ...errors import needed
from ...limits import BEING_COMPILED
from .cache_folder import cache_folder

Function = TypeVar("Function", bound=Callable[..., Any])

if "NUMBA_CACHE_DIR" not in os.environ:
    os.environ["NUMBA_CACHE_DIR"] = cache_folder()

with needed("numba"):
    import numba  # it reads its cache folder when it is imported
    from numba.core import event


class _Compilations(event.Listener):  # type: ignore[misc]
    """Keeps the list of what is being compiled; loading what an earlier run compiled is no event."""

    def on_start(self, event: object) -> None:
        BEING_COMPILED.append(event)

    def on_end(self, event: object) -> None:
        BEING_COMPILED.pop()


event.register("numba:compile", _Compilations())


def compiled(function: Function) -> Function:
    """Compile with numba at the first call, or load what an earlier run compiled; it releases the GIL.

    For functions that make no arrays: references to those handed in are not counted. Counting them takes longer than
    the work of small kernels that share tuples of many arrays, and keeps threads that use the same ones waiting.
    """
    made: Function = numba.njit(cache=True, nogil=True, _nrt=False)(function)
    return made


def inlined(function: Function) -> Function:
    """The same as a part of each kernel that calls it: calls copy each tuple of arrays.

    Without those calls an iteration of retention annealing takes half to four fifths of the time.
    """
    made: Function = numba.njit(cache=True, nogil=True, _nrt=False, inline="always")(function)
    return made


def allocating(function: Function) -> Function:
    """The same for functions that make arrays, or take slices in their innermost loops, and so count references."""
    made: Function = numba.njit(cache=True, nogil=True, _nrt=True)(function)
    return made


@compiled
def copy_part(target: Any, at: int, source: Any, begin: int, end: int) -> None:
    """``target[at:] = source[begin:end]``; an assignment of slices would make an array in case they overlap."""
    for place in range(begin, end):
        target[at + place - begin] = source[place]


@compiled
def sum_of(values: Any) -> int:
    """The sum of an array of whole numbers."""
    found = 0
    for place in range(len(values)):
        found += values[place]
    return found
