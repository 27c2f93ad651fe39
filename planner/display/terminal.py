"""The standard streams: width, colour, safe text, and a line of progress."""

from __future__ import annotations

import os
import re
import sys
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from ..limits import Limits, Stop
from .progress_line import FRAMES_PER_S, Cell, Spinner, display_of_notebook

if TYPE_CHECKING:
    from rich.console import Console

MAX_LINE = 500

MAX_WIDTH = 100


def one_line(text: str, limit: int = MAX_LINE) -> str:
    """``text`` as one printable line: control, format and separator characters escaped, cut at ``limit``.

    Names come from files and must not move the cursor, break the line or reorder it.
    """
    safe = []
    for character in text[: 4 * limit]:
        category = unicodedata.category(character)
        if category[0] == "C" or category in ("Zl", "Zp"):
            safe.append(character.encode("unicode_escape").decode("ascii"))
        else:
            safe.append(character)
    line = "".join(safe)
    return line if len(line) <= limit and len(text) <= 4 * limit else line[: limit - 3] + "..."


def is_terminal(stream: TextIO) -> bool:
    """Whether this stream is a terminal; a closed or replaced stream is not."""
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def is_unicode(stream: TextIO) -> bool:
    """Whether the encoding of this stream has every character; that of a stream in memory does."""
    return (getattr(stream, "encoding", None) or "utf-8").lower().startswith("utf")


def colours(stream: TextIO) -> bool:
    """Whether to use colour: on a terminal, unless NO_COLOR has any value (no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class _Trimmed:
    """A stream without the spaces that rich pads lines with, and with lines and bars that its encoding has."""

    _TAIL = re.compile(r" +((?:\x1b\[[0-9;]*m)*)$", re.MULTILINE)
    _ASCII = str.maketrans("─┴▁▂▃▄▅▆▇█▏▎▍▌▋▊▉…⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "-+.:-=+*%#---====~|/-\\|/-\\|/")

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn = None if is_unicode(stream) else self._ASCII

    def write(self, text: str) -> int:
        trimmed = self._TAIL.sub(r"\1", text)
        return self._stream.write(trimmed if self._drawn is None else trimmed.translate(self._drawn))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def console(stream: TextIO) -> Console:
    """A rich console that ignores markup in text, at most MAX_WIDTH columns wide."""
    from rich.console import Console

    class Plain(Console):
        encoding = "utf-8"  # what others lack _Trimmed replaces, one character by one

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    plain = Plain(
        file=cast(IO[str], _Trimmed(stream)),
        no_color=not colours(stream),
        color_system="auto" if colours(stream) else None,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=False,
    )
    plain.width = max(40, min(plain.width if is_terminal(stream) or os.environ.get("COLUMNS") else 90, MAX_WIDTH))
    return plain


class Activity:
    """Shows the current activity on stderr, if that is a terminal, or in a notebook."""

    def __init__(self, spinner: Any | None, live: Any | None = None) -> None:
        self._spinner = spinner
        self._live = live

    def now(self, doing: str) -> None:
        """Replace the line and draw it at once: an activity may be shorter than a frame."""
        self._set(doing)
        if self._live is not None and self._live.is_started:
            self._live.refresh()

    def tell(self, line: str) -> bool:
        """Leave a line that stays, and say whether somebody sees it; nobody does in a log."""
        if self._live is None:
            return False
        self._live.console.print(one_line(line), soft_wrap=True)
        return True

    def _set(self, doing: str) -> None:
        if self._spinner is not None:
            self._spinner.update(text=one_line(doing, MAX_WIDTH))

    def limits(self, store_all_ns: int | None, prefix: str = "", stop: Stop | None = None, keeps: str = "") -> Limits:
        """Limits for the solver: ``stop``, and progress on this line: the best plan so far, its gap, and Ctrl-C.

        Figures are shares of ``store_all_ns``, and left out without it. ``keeps`` is what a Ctrl-C keeps: the plan,
        where there is a ``stop``.
        """
        spinner = self._spinner
        if spinner is None:
            return Limits(stop=stop)

        def show(doing: str, best_ns: int | None, bound_ns: int) -> None:
            stops, key = stop is not None and stop(), spinner.interrupt
            line = f"stopping, {key} again to give up: {prefix}{doing}" if stops else f"{prefix}{doing}"
            if best_ns is not None and store_all_ns is not None:
                whole = max(1, store_all_ns)
                line += f", best +{best_ns / whole:.2%}"
                line += f", gap {max(0, best_ns - bound_ns) / whole:.2%}" if bound_ns else ""
            kept = keeps or ("the plan" if stop is not None else "")
            if best_ns is not None and kept and not stops:
                line += f"; {key} keeps {kept}"
            self._set(line)  # drawn with the next frame: a solver reports far more often

        return Limits(stop=stop, progress=show)


def _shown(*, redirect: bool) -> tuple[Any, Any] | None:
    """What a line is written to, and what draws it; None where nobody watches."""
    display = display_of_notebook()
    if display is not None:
        cell = Cell(display)
        return cell, cell
    if not is_terminal(sys.stderr):
        return None
    from rich.live import Live

    spinner = Spinner()
    return spinner, Live(
        spinner, console=console(sys.stderr), transient=True, refresh_per_second=FRAMES_PER_S,
        redirect_stdout=redirect, redirect_stderr=redirect,
    )  # fmt: skip


@contextmanager
def activity(quiet: bool, *, after_s: float = 0.0) -> Iterator[Activity]:
    """A line on stderr, or in a notebook, while work goes on; none with ``quiet`` or where nobody watches.

    It shows once the work has taken ``after_s`` seconds; then what others print meanwhile is left alone.
    """
    shown = None if quiet else _shown(redirect=not after_s)
    if shown is None:
        yield Activity(None)
        return
    spinner, live = shown
    timer = threading.Timer(after_s, live.start)
    timer.daemon = True
    if after_s:
        timer.start()
    else:
        live.start()
    try:
        yield Activity(spinner, live)
    finally:
        timer.cancel()
        if after_s:
            timer.join()
        live.stop()
