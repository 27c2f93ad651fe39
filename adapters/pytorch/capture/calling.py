"""How a bare module is called while it is traced: as any module, and printing what it prints once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from torch import nn


@contextmanager
def called_as_a_module(module: nn.Module) -> Iterator[None]:
    """Let a call of ``module`` be that of any module inside, whatever ``__call__`` its class defines.

    A bound module runs its class's own around the step.
    """
    cls = type(module)
    own = cls.__call__
    if own is nn.Module.__call__:
        yield
        return
    defined = "__call__" in cls.__dict__

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (nn.Module.__call__ if self is module else own)(self, *args, **kwargs)

    cls.__call__ = called
    try:
        yield
    finally:
        if defined:
            cls.__call__ = own
        else:
            del cls.__call__


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
