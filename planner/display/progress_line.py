"""The line that says what is being done and for how long: on a terminal, and in a cell of a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..limits import BEING_COMPILED

if TYPE_CHECKING:
    from rich.text import Text

FRAMES_PER_S = 12.5
"""How often the line is drawn, at the most."""


def elapsed(seconds: float) -> str:
    """How long something has run: ``12 s``, ``2:05``; nothing in the first second."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s" if whole else ""
    return f"{whole // 60}:{whole % 60:02}"


def activity_line(doing: str, began: float) -> str:
    """How long an activity has run since ``began``, a value of time.monotonic(), and what it does."""
    compiles = "compiling the search, once on this machine (a minute or two)"
    return " ".join(filter(None, (elapsed(time.monotonic() - began), compiles if BEING_COMPILED else doing)))


class Spinner:
    """The line on a terminal: it turns and counts seconds by itself, and is cut at the width."""

    interrupt = "Ctrl-C"
    _FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"

    def __init__(self) -> None:
        self._began, self._text = time.monotonic(), ""

    def update(self, *, text: str) -> None:
        """Change what is being done."""
        self._text = text

    def __rich__(self) -> Text:
        from rich.text import Text

        turn = int((time.monotonic() - self._began) * FRAMES_PER_S)
        line = f"{self._FRAMES[turn % len(self._FRAMES)]} {activity_line(self._text, self._began)}"
        return Text(line, no_wrap=True, overflow="ellipsis")


class Cell:
    """The line in a notebook: what a spinner, its live display and its console are on a terminal."""

    interrupt = "the stop button"

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display, self._handle, self._text = display, None, ""
        self._drawn, self._began = 0.0, time.monotonic()
        self.console, self.is_started = self, False

    def update(self, *, text: Any) -> None:
        """Change the text, which is drawn if it is time."""
        self._text = str(text)
        if self.is_started and time.monotonic() - self._drawn > 1 / FRAMES_PER_S:
            self.refresh()

    def start(self) -> None:
        """Show the line."""
        self._handle = self._display({"text/plain": self._text}, raw=True, display_id=True)
        self.is_started = True

    def refresh(self) -> None:
        """Draw the text."""
        if self._handle is not None:
            self._handle.update({"text/plain": self._text and activity_line(self._text, self._began)}, raw=True)
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
