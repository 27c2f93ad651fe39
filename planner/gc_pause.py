"""Python's search for cyclic garbage, put off while a plan is looked for."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collecting_later() -> Iterator[None]:
    """Look for no cyclic garbage meanwhile, if Python would.

    A solve leaves a few thousand objects of it, and every search goes through all that the process holds: with a
    framework loaded that takes a tenth of a second each time, which all threads wait for.
    """
    collects = gc.isenabled()
    try:
        gc.disable()  # an interrupt right behind it must find the way back
        yield
    finally:
        if collects:
            gc.enable()
