"""The only door to numba: `compiled`, `inlined` and `allocating` make machine code and remember it between runs.

The cache lives in the user's cache folder, not beside the installed sources: those may be read-only,
and files that pip did not write there would outlive an uninstall and shadow the next version. It is keyed
by the sources of all kernels: numba itself does not notice a change in a function that another one inlined.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ...errors import needed

Function = TypeVar("Function", bound=Callable[..., Any])


def _cache_folder() -> str:
    """A writable folder for compiled kernels: the user's cache, else a temporary one for this process."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or tempfile.gettempdir()
    elif sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    sources = hashlib.sha256()
    for source in sorted(Path(__file__).parents[1].rglob("*.py")):
        sources.update(source.read_bytes())
    folder = Path(base) / "ogc-plan" / f"kernels-{sources.hexdigest()[:16]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except OSError:
        return tempfile.mkdtemp(prefix="ogc-plan-kernels-")


os.environ.setdefault("NUMBA_CACHE_DIR", _cache_folder())

with needed("numba"):
    import numba  # it reads its cache folder when it is imported


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
