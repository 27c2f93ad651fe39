"""Files on the command line: models, plans, and ``-`` for the standard streams."""

from __future__ import annotations

import gzip
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..planner.errors import StorageError, UsageError

if TYPE_CHECKING:
    from ..planner.plan_file.record import Plan

STDIO = "-"
_GZIP = b"\x1f\x8b"


@contextmanager
def readable(path: str) -> Iterator[str]:
    """The path of a file that can be read; ``-`` is copied from stdin to a temporary file.

    Raises StorageError for a missing file, a folder, a file without read permission or a closed stdin.
    """
    if path == STDIO:
        if sys.stdin is None:
            raise StorageError("cannot read from -: standard input is closed", remedy="give the path of a file")
        content = sys.stdin.buffer.read()
        with tempfile.TemporaryDirectory(prefix="ogc-plan-") as folder:
            copy = Path(folder, "stdin.gz" if content.startswith(_GZIP) else "stdin")
            copy.write_bytes(content)
            yield str(copy)
        return
    try:
        if os.path.exists(path) and not os.path.isdir(path) and not os.path.isfile(path):
            raise StorageError(
                f"cannot read {path!r}: it is a pipe or a device", remedy="pipe the file in and pass - for its name"
            )
        with open(path, "rb"):
            pass
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise StorageError(f"cannot read {path!r}: {why}", remedy="check the path and its permissions") from error
    yield path


def is_plan(path: str) -> bool:
    """Whether the file is JSON, maybe in gzip: its content decides, and an ONNX model never is."""
    try:
        with open(path, "rb") as file:
            head = file.read(4096)
        if head.startswith(_GZIP):
            with gzip.open(path) as packed:
                head = packed.read(4096)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return True  # read_plan says what is wrong with it
    except OSError as error:
        raise StorageError(f"cannot read {path!r}: {error.strerror}", remedy="check the path") from error
    return head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")


def refuse_plan(path: str, shown: str) -> None:
    """Raise UsageError for a plan that is given as a model."""
    if is_plan(path):
        raise UsageError(f"{shown!r} is not an ONNX model but JSON", remedy="look at a plan with: ogc-plan show PLAN")


def check_target(path: str, model: str = STDIO, *, usual: str = "plan.json") -> None:
    """Refuse a path that cannot be written, and the path of the model itself, before any work is done.

    ``usual`` is the name that remedies propose.
    """
    if path == STDIO:
        return
    if model != STDIO and os.path.exists(path) and os.path.exists(model) and os.path.samefile(path, model):
        raise UsageError(f"-o {path!r} would overwrite the model", remedy=f"write -o {usual}")
    target = Path(path)
    try:
        mode = target.stat().st_mode if os.path.lexists(target) and target.exists() else None
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot write {path!r}: {error}", remedy="choose another -o path") from error
    if mode is not None and stat.S_ISDIR(mode):
        raise StorageError(f"cannot write {path!r}: it is a folder", remedy=f"write -o {path.rstrip('/')}/{usual}")
    if mode is not None and not stat.S_ISREG(mode):
        return  # a pipe or a device: opening it early would already act on it
    if not target.parent.is_dir():
        raise StorageError(
            f"cannot write {path!r}: the folder {str(target.parent)!r} does not exist",
            remedy=f"make it with: mkdir -p {target.parent}",
        )
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise StorageError(
            f"cannot write {path!r}: the folder {str(target.parent)!r} is not writable",
            remedy="choose another -o path",
        )


def write_to(plan: Plan, path: str) -> None:
    """Write a plan atomically to a file, to stdout (``-``), or to a pipe or device."""
    from ..planner.plan_file.writer import dumps, write_plan

    if not _streamed(lambda: dumps(plan).encode("utf-8", "surrogatepass"), path):
        write_plan(plan, _place(path))


def write_bytes_to(content: bytes, path: str) -> None:
    """The same for bytes."""
    from ..planner.plan_file.writer import write_whole

    if not _streamed(lambda: content, path):
        write_whole(content, _place(path))


def _streamed(content: Callable[[], bytes], path: str) -> bool:
    """Write to stdout, a pipe or a device; False if ``path`` is or will be a file."""
    target = Path(path)
    if path == STDIO:
        print_bytes(content())
    elif target.exists() and not target.is_file():
        try:  # never replaced by a file: /dev/null stays what it is
            target.write_bytes(content())
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StorageError(f"cannot write {path!r}: {error.strerror}", remedy="choose another -o path") from error
    else:
        return False
    return True


def _place(path: str) -> str:
    """The file that is written: a link is followed and stays a link."""
    return os.path.realpath(path) if Path(path).is_symlink() else path


def print_bytes(content: bytes) -> None:
    """Write bytes to stdout and flush, so that a full disk or a closed pipe is noticed here."""
    sys.stdout.flush()
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        sys.stdout.write(content.decode("utf-8", "backslashreplace"))
    else:
        buffer.write(content)
    sys.stdout.flush()
