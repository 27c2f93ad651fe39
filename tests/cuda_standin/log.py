"""What a piece of code launches on the stand-in: kernels and library calls, by thread, and the bytes of the card."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

_LIBRARY = ctypes.CDLL(None)


class Launch(NamedTuple):
    """One line of the log. ``kind`` is "kernel" or "call"; names of kernels are demangled."""

    thread: int
    kind: str
    name: str


class Launches(list[Launch]):
    """The launches of a block, in order."""

    def names(self) -> Counter[str]:
        """How often each kernel or call was launched."""
        return Counter(launch.name for launch in self)


@contextmanager
def launches() -> Iterator[Launches]:
    """The launches of the block, once it has ended."""
    found = Launches()
    with tempfile.NamedTemporaryFile(mode="r", suffix=".txt") as file:
        torch.cuda.synchronize()
        _LIBRARY.standin_log(file.name.encode())
        try:
            yield found
        finally:
            torch.cuda.synchronize()
            _LIBRARY.standin_log(b"")
        lines = Path(file.name).read_text()
    named = subprocess.run(["c++filt"], input=lines, check=True, capture_output=True, text=True).stdout
    for line in named.splitlines():
        thread, kind, name = line.split(" ", 2)
        found.append(Launch(int(thread), kind, name))


def card_used() -> int:
    """Bytes of the card that are taken now, segments of the allocator included."""
    return int(_counter("standin_used")())


def card_peak() -> int:
    """The most bytes of the card taken since the last `reset_card_peak`."""
    return int(_counter("standin_peak")())


def reset_card_peak() -> None:
    """Start counting the peak from what is taken now."""
    _LIBRARY.standin_reset_peak()


def launch_count() -> int:
    """Kernels launched since the process began."""
    return int(_counter("standin_launches")())


def wait_count() -> int:
    """How often the process waited for the card, or freed memory of it."""
    return int(_counter("standin_waits")())


def _counter(name: str) -> ctypes._NamedFuncPointer:
    function = getattr(_LIBRARY, name)
    function.restype = ctypes.c_size_t
    return function  # type: ignore[no-any-return]
