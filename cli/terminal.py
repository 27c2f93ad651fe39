"""Errors as one escaped line, and their exit codes."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable
from typing import TextIO

import click

from ..planner.display.terminal import colours, one_line
from ..planner.errors import OgcPlanError, missing

BROKEN_PIPE = 141  # what a shell reports for a process that SIGPIPE ended

INTERRUPTED = 130


def tell_error(message: str, remedy: str) -> None:
    """``error: ...`` and ``help: ...`` on stderr."""
    for word, colour, text in (("error", "red", message), ("help", "cyan", remedy)):
        if text:
            label = click.style(f"{word}:", fg=colour, bold=True) if colours(sys.stderr) else f"{word}:"
            click.echo(f"{label} {one_line(text)}", err=True, color=colours(sys.stderr))


def _usage(error: click.ClickException) -> tuple[str, str]:
    """Message and remedy of a click error."""
    message = error.format_message().strip().rstrip(".")
    context = getattr(error, "ctx", None)
    path = context.command_path.strip() if context is not None else "ogc-plan"
    message = " ".join(message.split())
    return message[:1].lower() + message[1:], f"see: {path} --help"


def report_failure(
    error: BaseException, *, debug: bool, blamed: Callable[[str], str] = str, searches: bool = True
) -> int:
    """Print ``error`` and return its exit code.

    ``blamed`` says where a user's error comes from, ``searches`` whether the command takes a time limit.
    """
    try:
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):  # Python would flush again at exit, with its own exit code
        _silence(sys.stdout)
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    if debug and not isinstance(error, click.ClickException):
        traceback.print_exception(type(error), error, error.__traceback__)
    if isinstance(error, ImportError):
        error = missing(error) or error
    if isinstance(error, OgcPlanError):
        tell_error(blamed(error.message), error.remedy)
        return error.exit_code
    if isinstance(error, click.UsageError):
        message, remedy = _usage(error)
        tell_error(blamed(message), remedy)
        return 2
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        limited = "pass --time-limit 30s to get the best plan found in that time"
        tell_error("interrupted, no plan was written" if searches else "interrupted", limited if searches else "")
        return INTERRUPTED
    if isinstance(error, MemoryError):
        tell_error("memory ran out", "close other programs, or plan on a machine with more memory")
        return 8
    if isinstance(error, OSError):
        where = f" {error.filename!r}" if error.filename is not None else ""
        tell_error(f"cannot read or write{where}: {error.strerror or error}", "check the path, its rights and the disk")
        return 8
    tell_error(
        f"internal {type(error).__name__}: {error}", "this is a defect of ogc-plan: report it with what --debug shows"
    )
    return 1


def _silence(stream: TextIO) -> None:
    """Discard what is left in the buffer, so that Python exits quietly."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):  # a stream without a descriptor has nothing to flush
        return


def tolerate_any_text() -> None:
    """Make both streams print characters that their encoding lacks as escapes.

    Raises OSError where there is no standard output.
    """
    if sys.stdout is None:
        raise OSError(errno.EBADF, "standard output is closed")
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
