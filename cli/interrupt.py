"""Ctrl-C during a search: the first one ends it with the best plan so far, the second one ends the program."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Take over Ctrl-C; yields the question whether it was pressed, for the search to ask.

    After the first one Ctrl-C means again what it always does. Nothing is taken over outside the main
    thread, nor where something else than Python's own handler is in charge, such as a shell's ``nohup``.
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
