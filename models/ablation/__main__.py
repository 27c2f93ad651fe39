"""Measure what each piece of `optimal` is worth: plan every graph with all of it, then without one piece at a time.

    python -m models.ablation -o models/results/ablation.json --jobs 2

The graphs are those of the plan benchmark and 20 new ones, the pieces those of models/ablation/pieces.py. Work is
counted, so plans and bounds are the same on any machine; times are processor time. Results stand under the digest of
the code that they were made with. What the JSON file has under the present digest is not solved again. The tables go
to standard output and, as Markdown, next to the JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.metadata import version
from pathlib import Path
from typing import Any

from models.ablation.graphs import GRAPHS, NEW
from models.ablation.measure import measured
from models.ablation.pieces import BASES, PIECES, Piece
from models.ablation.table import page
from models.plan_benchmark.times import warm
from models.reporting.command_line import add_output, command_parser
from models.reporting.kept import digest_of
from models.reporting.option_values import count, folder
from models.reporting.result_record import processor

CODE = ("planner/**/*.py", "models/graphs/*.py", "models/ablation/pieces.py")
SAVED_S = 15.0
"""Results are written at most so often, in seconds."""


def section_of(record: dict[str, Any]) -> dict[str, Any]:
    """The results of the present code in a record; begun if it has none."""
    made_with = {name: version(name) for name in ("ogc-plan", "ortools", "numba", "onnx")}
    begun = {"command": "python -m models.ablation", "versions": made_with, "machine": processor()}
    found: dict[str, Any] = record.setdefault(
        f"code of digest {digest_of(CODE)}", {**begun, "graphs": {}, "pieces": {}, "cells": {}}
    )
    return found


def save(path: Path | None, record: dict[str, Any]) -> None:
    """Write a record, one cell a line, and its page; the file is whole at any time."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    text = json.dumps(record, indent=1)
    unfinished.write_text(re.sub(r"\{[^{}]+\}", lambda inner: " ".join(inner[0].split()), text) + "\n")
    unfinished.replace(path)
    path.with_suffix(".md").write_text(page(record))


def run(record: dict[str, Any], path: Path | None, jobs: Sequence[tuple[Piece, str]], count: int, files: Path) -> None:
    """Do the ``jobs``, pieces and graphs, that the record has not done with the present code."""
    section, saved = section_of(record), time.monotonic()
    warm()  # kernels are compiled here, once, and not by every process
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=warm) as pool:
        running = {
            pool.submit(measured, name, piece.name, files): (piece, name)
            for piece, name in jobs
            if name not in section["cells"].get(piece.name, {})
        }
        for future in as_completed(running):
            piece, name = running.pop(future)
            section["graphs"][name], cells = future.result()
            section["pieces"][piece.name] = {"about": piece.about, "base": piece.base, "lowest": piece.lowest}
            section["cells"].setdefault(piece.name, {})[name] = cells
            spent = sum(cell["cpu_s"] for cell in cells.values())
            print(f"{piece.name} {name}: {spent:.1f} s", file=sys.stderr, flush=True)
            if time.monotonic() > saved + SAVED_S:
                save(path, record)
                saved = time.monotonic()
    save(path, record)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for."""
    parser = command_parser("models.ablation", __doc__)
    add_output(parser)
    every = {**BASES, **PIECES}
    parser.add_argument("--only", nargs="*", choices=every, metavar="PIECE", help=f"of {' '.join(every)}")
    parser.add_argument("--graphs", nargs="*", choices=GRAPHS, metavar="NAME", help="graphs, e.g. dag60_7 light-vgg19")
    parser.add_argument("--new", action="store_true", help="the graphs that the plan benchmark has not")
    parser.add_argument("--jobs", type=count, default=1, help="processes at a time")
    parser.add_argument("--files", type=folder, help="folder of the graphs' files (default: one in /tmp)")
    options = parser.parse_args(arguments)
    files = options.files or Path(tempfile.gettempdir()) / "ogc-plan-ablation"
    files.mkdir(parents=True, exist_ok=True)
    chosen = [every[name] for name in options.only or every]
    bases = [base for base in BASES.values() if any(piece.base == base.name for piece in chosen)]
    pieces = dict.fromkeys(piece.name for piece in (*bases, *chosen))
    jobs = [(every[piece], name) for piece in pieces for name in options.graphs or (NEW if options.new else GRAPHS)]
    existing = options.output is not None and options.output.exists()
    record = json.loads(options.output.read_text()) if existing else {}
    run(record, options.output, jobs, options.jobs, files)
    print(page(record), end="")


if __name__ == "__main__":
    main()
