"""Calls of the command line in this process and in another one, and what they give back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

GREEDY = ("--dim", "batch=4096", "--budget", "70%", "--strategy", "greedy")
HOSTILE = "n\x1b[31m\n\rerror: \u202efake\u2028[bold red] {x}\x00\x9b\ud800" + "y" * 900
"""A name that would move the cursor, break the line and reorder it."""


class Run:
    """One call of `main` in this process."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def error(self) -> str:
        """The single error line; fails when stderr holds anything but it and at most one help line."""
        lines = self.err.splitlines()
        assert lines
        assert lines[0].startswith("error: ")
        assert len(lines) <= 2
        assert all(line.startswith("help: ") for line in lines[1:])
        return lines[0]


Call = Callable[..., Run]


def raising(error: BaseException) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


def process(*words: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ogc_plan.cli.main", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)
