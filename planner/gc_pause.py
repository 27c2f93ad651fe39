"""A pause of Python's cyclic garbage collection while a plan is searched."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the cyclic garbage collector, if it is enabled.

    A solve leaves a few thousand objects for it, and every collection walks all that the process holds: with a
    framework loaded a tenth of a second each time, for which all threads wait.
    """
    collects = gc.isenabled()
    try:
        gc.disable()  # inside the try, so that an interrupt here still enables it again
        yield
    finally:
        if collects:
            gc.enable()
