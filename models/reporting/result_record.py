"""Results as files: a JSON record and a Markdown report, both saying what made them, where, with which versions."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


def machine(device: str) -> str:
    """The device that results were measured on, in words."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"CPU, {platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def versions() -> dict[str, str]:
    """What made the results, beside this repository: the versions that figures may depend on."""
    return {"python": platform.python_version()} | {name: version(name) for name in ("torch", "ogc-plan", "ortools")}


def write(
    path: Path, report: str, *, script: str, arguments: Sequence[str] | None, device: str, quantity: str, **data: Any
) -> None:
    """Write ``data`` to ``path`` as JSON and ``report`` beside it as Markdown.

    ``arguments`` are those ``script`` ran with, None for those of this process.
    """
    command = " ".join([f"python -m {script}", *(sys.argv[1:] if arguments is None else arguments)])
    made_by = versions()
    record = {"command": command, "quantity": quantity, "device": machine(device), "versions": made_by, **data}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    listed = ", ".join(f"{name} {number}" for name, number in made_by.items())
    path.with_suffix(".md").write_text(f"`{command}` on {record['device']}; {listed}\n\n{report}\n")
