"""Ctrl-C: the first one ends a search with its best plan, the second one the program; or it waits for a block's end."""

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


@contextmanager
def held_back(after: int = 0) -> Iterator[Callable[[], None]]:
    """Give Ctrl-C its usual effect ``after`` times in a block; every further one waits for the end of the block.

    Yields a function that begins to count anew. Nothing changes where no Python handler would be called: outside the
    main thread, or under ``nohup``.
    """
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield lambda: None
        return
    pressed, waiting = 0, False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal pressed, waiting
        pressed += 1
        if pressed <= after:
            usual(number, frame)
        else:
            waiting = True

    def renew() -> None:
        nonlocal pressed
        pressed = 0

    try:
        signal.signal(signal.SIGINT, ask)
        yield renew
    finally:
        pressed = after  # one that came now would leave this handler installed
        signal.signal(signal.SIGINT, usual)
        if waiting:
            usual(signal.SIGINT, None)
