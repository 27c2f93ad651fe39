"""Results of long runs that are kept on disk, so that an interrupted run resumes where it stopped."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def digest_of(code: Iterable[str], options: Iterable[str] = ()) -> str:
    """The first digits of a digest of ``options`` and of the ``code``, glob patterns from the root."""
    digest = hashlib.sha256(" ".join(options).encode())
    for path in sorted({path for pattern in code for path in ROOT.glob(pattern)}):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def folder_of(name: str, options: Iterable[str], code: Iterable[str]) -> Path:
    """The folder for results of these options and the present state of the ``code``, as in `digest_of`."""
    return Path(tempfile.gettempdir()) / f"ogc-plan-benchmark-{name}{digest_of(code, options)}"


def kept(path: Path) -> dict[str, Any] | None:
    """The result in a file; None where there is none."""
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def keep(path: Path, result: dict[str, Any]) -> None:
    """Write a result; the file exists only once it is whole."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(result))
    unfinished.replace(path)
