"""Runs one stage of the first day, in a process of its own.

    python -m models.cuda.day_one.stage NAME FILE [--small] [--network NETWORK ...]

FILE receives what was found, after each row, so that a stage that is cut off still tells.
"""

from __future__ import annotations

import argparse
import importlib
import math
from pathlib import Path
from typing import Any

from models.reporting.kept import keep

NETWORKS = ("resnet50", "gpt", "unet")


def plain(value: Any) -> Any:
    """The value as JSON has it: numbers that are not finite as text."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def main() -> None:
    """Run the stage that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("file", type=Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--network", choices=NETWORKS, action="append", help="run this one, and others so named")
    options = parser.parse_args()
    module = importlib.import_module(f"models.cuda.day_one.{options.name}")
    from models.cuda import card
    from models.cuda.day_one import cases

    card.prepare()
    cases.chosen = tuple(options.network or NETWORKS)
    module.run(options.small, lambda found: keep(options.file, plain(found)))


if __name__ == "__main__":
    main()
