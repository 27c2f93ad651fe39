"""The values of the command lines' options: text to value, or one line on what is wrong with it and what to write.

Each function is a ``type`` of argparse and raises its ArgumentTypeError.
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

WRITTEN_BESIDE = (".md", ".svg")
"""The files that are written next to a JSON file of results, under its name."""


def count(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def count_or_none(text: str) -> int:
    """A whole number from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 on")
    return int(text)


def counts(text: str) -> tuple[int, ...]:
    """Whole numbers from 1 on, between commas."""
    return tuple(count(part.strip()) for part in text.split(","))


def rate(text: str) -> float:
    """A number above 0."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0; write for example 0.01")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def output_file(text: str) -> Path:
    """A JSON file that can be written, with its neighbours."""
    path = Path(text)
    if not path.name or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder; name a file in it, for example results.json")
    if path.suffix in WRITTEN_BESIDE:
        raise argparse.ArgumentTypeError(f"{text!r}: a {path.suffix} is written next to the file; name it .json")
    folder(str(path.parent))
    return path


def folder(text: str) -> Path:
    """A folder that is there and can be written to, or that can be made."""
    path = Path(text)
    present = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    if not present.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: {present} is a file, not a folder; name another place")
    if not os.access(present, os.W_OK | os.X_OK):
        raise argparse.ArgumentTypeError(f"{text!r}: {present} cannot be written to; name another place")
    return path
