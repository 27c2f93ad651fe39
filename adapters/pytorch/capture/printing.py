"""Prints of a forward that is traced: it runs several times then, and eager training would print once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any


class Prints:
    """The output of a forward that runs again and again: what one run has printed, the next ones do not print."""

    def __init__(self, *, silent: bool) -> None:
        self._printed, self._at, self._silent = 0, 0, silent
        self._real = sys.stdout

    def wrap(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """``forward`` printing here."""

        def printing(*args: Any, **kwargs: Any) -> Any:
            self._at = 0
            with redirect_stdout(self):
                return forward(*args, **kwargs)

        return printing

    def write(self, text: str) -> int:
        """Print what no run before has printed."""
        known = max(0, self._printed - self._at)
        self._at += len(text)
        self._printed = max(self._printed, self._at)
        if not self._silent:
            self._real.write(text[known:])
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
