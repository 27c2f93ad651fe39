"""A line of progress in a notebook, in an output of the running cell that is written again and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

_FRAME_S = 0.1
"""The line is written again after so many seconds, at the earliest."""


class Cell:
    """The line in a notebook: what a spinner, its live display and its console are on a terminal."""

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display, self._handle, self._text, self._drawn = display, None, "", 0.0
        self.console, self.is_started = self, False

    def update(self, *, text: Any) -> None:
        """Change the text, which is drawn if it is time."""
        self._text = str(text)
        if self.is_started and time.monotonic() - self._drawn > _FRAME_S:
            self.refresh()

    def start(self) -> None:
        """Show the line."""
        self._handle = self._display({"text/plain": self._text}, raw=True, display_id=True)
        self.is_started = True

    def refresh(self) -> None:
        """Draw the text."""
        if self._handle is not None:
            self._handle.update({"text/plain": self._text}, raw=True)
        self._drawn = time.monotonic()

    def stop(self) -> None:
        """Leave the line empty."""
        self._text = ""
        self.refresh()

    def print(self, line: str, *, soft_wrap: bool) -> None:
        """Leave another line, which stays."""
        self._display({"text/plain": line}, raw=True)


def display_of_notebook() -> Callable[..., Any] | None:
    """The function that shows something below the running cell; None outside of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if not hasattr(shell, "kernel"):
        return None
    display: Callable[..., Any] = import_module("IPython.display").display
    return display
