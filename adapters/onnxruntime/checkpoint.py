"""Checkpoints: arrays and what they belong to in one file, which is there whole or not at all."""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from json import dumps as quoted
from pathlib import Path
from typing import Any

import numpy as np

from ...planner.errors import StorageError
from ...planner.plan_file.writer import write_whole

FORMAT = "ogc-plan-checkpoint"
_ABOUT = "about"
_EARLIER = "load an earlier checkpoint"


def write_checkpoint(path: str | os.PathLike[str], arrays: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Write a temporary file beside ``path``, sync it, and put it in the place of ``path``.

    Raises StorageError where that fails, of a full disk too: an older checkpoint under that name is then unchanged.
    """
    buffer = io.BytesIO()
    header = np.frombuffer(json.dumps({**about, "format": FORMAT, "version": 1}).encode(), np.uint8)
    names = sorted(arrays)
    listed: dict[str, Any] = {f"array{at}": arrays[name] for at, name in enumerate(names)}
    listed |= {_ABOUT: header, "names": np.frombuffer(json.dumps(names).encode(), np.uint8)}
    np.savez(buffer, **listed)
    write_whole(buffer.getvalue(), path, "the checkpoint ")


def read_checkpoint(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays by name, and what was said of them. Raises StorageError for a file that is missing, foreign or damaged."""
    shown = quoted(str(path))
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise StorageError(f"{shown} cannot be read: {reason}", remedy="check the path and its permissions") from None
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            about = json.loads(stored[_ABOUT].tobytes())
            names = json.loads(stored["names"].tobytes())
            arrays = {name: stored[f"array{at}"] for at, name in enumerate(names)}
    except (ValueError, KeyError, EOFError, OSError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        told = str(error).strip().partition("\n")[0] or type(error).__name__
        raise StorageError(f"checkpoint {shown} is damaged or none: {told}", remedy=_EARLIER) from None
    if not isinstance(about, dict) or (about.get("format"), about.get("version")) != (FORMAT, 1):
        raise StorageError(f"{shown} is no checkpoint of this version", remedy=_EARLIER)
    return arrays, about
