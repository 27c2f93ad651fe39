"""JSON from outside: files of a limited size, with no key given twice."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from json import dumps as quoted
from pathlib import Path
from typing import Any, NoReturn

from .errors import StorageError, UsageError


def read_json(
    path: Path,
    where: str,
    *,
    kind: str,
    most_nbytes: int,
    remedy: str,
    parse_constant: Callable[[str], Any] | None = None,
) -> Any:
    """The data in a JSON file that describes a ``kind`` (device, profile); errors call it ``where``.

    Raises StorageError if it cannot be read, and UsageError with the ``remedy`` if it is larger than ``most_nbytes``,
    not UTF-8 or not JSON. ``parse_constant`` is that of json.loads.
    """
    text = _text(path, where, kind, most_nbytes, remedy)
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=parse_constant)
    except (ValueError, RecursionError) as error:
        reason = str(error).split("\n")[0][:200]
        raise UsageError(f"{where} is not JSON: {reason}", remedy=remedy) from None


def refuse_constant(text: str) -> NoReturn:
    """For ``parse_constant`` of json.loads. Raises ValueError for NaN and infinity."""
    raise ValueError(f"{text} is not a number")


def _text(path: Path, where: str, kind: str, most_nbytes: int, remedy: str) -> str:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise StorageError(f"{where} cannot be read: it is not a regular file", remedy=f"pass a {kind}'s JSON file")
        if status.st_size > most_nbytes:
            raise UsageError(f"{where} has {status.st_size} bytes: it is no {kind}", remedy=remedy)
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{where} is not UTF-8 text", remedy=remedy) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise StorageError(f"{where} cannot be read: {reason}", remedy="check the path and its permissions") from None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """For json.loads: an object. Raises ValueError for a key that is given twice."""
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {quoted(next(key for key in keys if keys.count(key) > 1)[:80])} is given twice")
    return data
