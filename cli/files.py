"""Files on the command line: models, plans, and ``-`` for the standard streams."""

from __future__ import annotations

import gzip
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..planner.errors import InvalidModelError, OgcPlanError, StorageError, UsageError, shell_word

if TYPE_CHECKING:
    from ..planner.model import Model
    from ..planner.plan_file.record import Plan

STDIO = "-"
STDIN_NAME = "standard input"
"""What reports, errors and plans call a file that came from standard input."""
_GZIP = b"\x1f\x8b"
_MOST_NBYTES = 2**31
"""No more is copied from standard input: no file is that long."""


@contextmanager
def readable(path: str) -> Iterator[str]:
    """The path of a file that can be read; ``-`` is copied from stdin to a temporary file, which errors do not name.

    Raises StorageError for a missing file, a folder, a file without read permission or a closed stdin.
    """
    if path == STDIO:
        if sys.stdin is None:
            raise StorageError("cannot read from -: standard input is closed", remedy="give the path of a file")
        with tempfile.TemporaryDirectory(prefix="ogc-plan-") as folder:
            copy = Path(folder, STDIN_NAME)
            with copy.open("wb") as file:
                while file.tell() <= _MOST_NBYTES and (part := sys.stdin.buffer.read(2**20)):
                    file.write(part)
            try:
                yield str(copy)
            except OgcPlanError as error:
                error.message = error.message.replace(str(copy), STDIN_NAME)
                error.remedy = error.remedy.replace(str(copy), STDIN_NAME)
                raise
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


def shown(path: str) -> str:
    """What errors and reports call a file on the command line."""
    return STDIN_NAME if path == STDIO else path


def _head(path: str) -> bytes | None:
    """The first bytes of a file, uncompressed if it is in gzip; None for a damaged gzip file."""
    try:
        with open(path, "rb") as file:
            head = file.read(4096)
        if not head.startswith(_GZIP):
            return head
        with gzip.open(path) as packed:
            return packed.read(4096)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return None
    except OSError as error:
        raise StorageError(f"cannot read {path!r}: {error.strerror}", remedy="check the path") from error


def read_model(path: str, time_limit_s: float | None = None, **options: Any) -> Model:
    """`load_model` in a process of its own, which a hostile file cannot leave."""
    from ..planner.model import load_model
    from ..planner.onnx_import import reader  # noqa: F401 - once for the processes of all sizes
    from ..planner.onnx_import.child_process import in_child

    return in_child(partial(load_model, path, **options), repr(path), os.path.getsize(path), time_limit_s)


def is_plan(path: str) -> bool:
    """Whether the file is JSON, maybe in gzip: its content decides, and an ONNX model never is.

    A damaged gzip file counts as a plan: `read_plan` says what is wrong with it.
    """
    head = _head(path)
    return head is None or _is_json(head)


def _is_json(head: bytes) -> bool:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")


def refuse_plan(path: str, model: str) -> None:
    """Raise UsageError for a plan that is given as a ``model``, and InvalidModelError for a damaged gzip file."""
    head = _head(path)
    if head is None:
        raise InvalidModelError(
            f"{shown(model)!r} is a damaged gzip file, not an ONNX model", remedy="copy the model again, uncompressed"
        )
    if _is_json(head):
        raise UsageError(
            f"{shown(model)!r} is not an ONNX model but JSON", remedy="look at a plan with: ogc-plan show PLAN"
        )


def check_target(path: str, model: str = STDIO, *, usual: str = "plan.json", option: str = "-o") -> None:
    """Refuse a path that cannot be written, and the path of the model itself, before any work is done.

    ``usual`` is the name that remedies propose for ``option``.
    """
    if path == STDIO:
        return
    if model != STDIO and os.path.exists(path) and os.path.exists(model):
        if os.path.samefile(path, model):
            raise UsageError(f"{option} {path!r} would overwrite the model", remedy=f"write {option} {usual}")
        if any(os.path.exists(held) and os.path.samefile(path, held) for held in _weights_beside(model)):
            raise UsageError(
                f"{option} {path!r} would overwrite weights of the model", remedy=f"write {option} {usual}"
            )
    target = Path(path)
    try:
        mode = target.stat().st_mode if os.path.lexists(target) and target.exists() else None
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot write {path!r}: {error}", remedy="choose another path") from error
    if mode is not None and stat.S_ISDIR(mode):
        raise StorageError(
            f"cannot write {path!r}: it is a folder",
            remedy=f"write {option} {shell_word(os.path.join(path, usual))}",
        )
    if mode is not None and not stat.S_ISREG(mode):
        return  # a pipe or a device: opening it early would already act on it
    _check_folder(path, target.parent)


def _weights_beside(model: str) -> list[Path]:
    """The files that hold weights of a model; none where it cannot be read, which is told later."""
    found = os.stat(model)
    return _weights_of(model, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=1)
def _weights_of(model: str, _mtime_ns: int, _size: int) -> list[Path]:
    """The same, read once for all targets of a command; the time and the size tell one content from another."""
    from ..planner.onnx_import.child_process import in_child
    from ..planner.onnx_import.document.model_file import external_files, parse_model, read_file

    def files() -> list[Path]:
        return external_files(parse_model(read_file(Path(model)), model), Path(model).parent)

    try:
        return in_child(files, repr(model), _size)
    except OgcPlanError:
        return []


def check_report(path: str | None, *others: str | None, option: str = "--report", usual: str = "report.html") -> None:
    """`check_target` for the page or picture of ``option``, which must be a file and none of the ``others``."""
    if path is None:
        return
    remedy = f"write {option} {usual}"
    if path == STDIO:
        raise UsageError(f"{option} - is no file, and standard output has the report in words", remedy=remedy)
    for other in others:
        if other is not None and other != STDIO and os.path.realpath(path) == os.path.realpath(other):
            raise UsageError(f"{option} {path!r} would overwrite {other!r}", remedy=remedy)
    check_target(path, usual=usual, option=option)


def _check_folder(path: str, folder: Path) -> None:
    """Refuse the folder of a target that cannot be made or is not writable."""
    nearest = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not nearest.is_dir():
        why = f"{str(nearest)!r} is not a folder"
    elif not os.access(nearest, os.W_OK | os.X_OK):
        why = f"the folder {str(nearest)!r} is not writable"
    else:
        return
    raise StorageError(f"cannot write {path!r}: {why}", remedy="choose another path")


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


def write_report(path: str | None, plan: Plan, frontier: Sequence[Plan] = ()) -> None:
    """Write the report on a plan as a page, if there is a path for it."""
    if path is None:
        return
    from ..planner.display.html.page import report

    write_bytes_to(report(plan, frontier).encode("utf-8"), path)


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
            raise StorageError(f"cannot write {path!r}: {error.strerror}", remedy="choose another path") from error
    else:
        return False
    return True


def _place(path: str) -> str:
    """The file that is written: a link is followed and stays a link. Its folder is made where it is missing."""
    place = os.path.realpath(path) if Path(path).is_symlink() else path
    try:
        Path(place).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write {path!r}: {error.strerror}", remedy="choose another path") from error
    return place


def print_bytes(content: bytes) -> None:
    """Write bytes to stdout and flush, so that a full disk or a closed pipe is noticed here."""
    sys.stdout.flush()
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        sys.stdout.write(content.decode("utf-8", "backslashreplace"))
    else:
        buffer.write(content)
    sys.stdout.flush()
