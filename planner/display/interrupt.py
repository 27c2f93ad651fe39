"""Ctrl-C during a search: the first one ends the search with its best plan, the second one ends the program."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Handle Ctrl-C; yields a function that says whether it was pressed.

    The second Ctrl-C has its usual effect. The handler is installed only in the main thread, and only in place of
    Python's own handler: under ``nohup``, for example, nothing changes.
    """
    pressed = threading.Event()
    usual = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not usual:
        yield pressed.is_set
        return

    def ask(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, usual)
        pressed.set()

    signal.signal(signal.SIGINT, ask)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, usual)
