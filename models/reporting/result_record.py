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


def machine(device: str) -> str:
    """The device that results were measured on, in words."""
    import torch

    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"CPU, {platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def processor() -> str:
    """The processor that results were made on, in words, for results without torch."""
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def versions() -> dict[str, str]:
    """The versions that figures may depend on, besides this repository's commit."""
    return {"python": platform.python_version()} | {name: version(name) for name in ("torch", "ogc-plan", "ortools")}


def publish(report: str, path: Path | None, **record: Any) -> None:
    """Print ``report``; with a ``path``, `write` the record there."""
    print(report)
    if path is not None:
        write(path, report, **record)


def write(
    path: Path, report: str, *, script: str, arguments: Sequence[str] | None, device: str, quantity: str, **data: Any
) -> None:
    """Write ``data`` to ``path`` as JSON and ``report`` next to it as Markdown.

    ``arguments`` are the command line of ``script``; None means the command line of this process.
    """
    command = " ".join([f"python -m {script}", *(sys.argv[1:] if arguments is None else arguments)])
    made_by = versions()
    record = {"command": command, "quantity": quantity, "device": machine(device), "versions": made_by, **data}
    listed = ", ".join(f"{name} {number}" for name, number in made_by.items())
    save(path, record, f"`{command}` on {record['device']}; {listed}\n\n{report}\n")


def save(path: Path, record: dict[str, Any], page: str) -> None:
    """Write a record as JSON, and its Markdown page next to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    path.with_suffix(".md").write_text(page)
