"""Train the ONNX files that other people published: `from_onnx`, then a step within 60% of its activations.

    python -m models.published_files.training -o models/results/trained_files.json [--cache FOLDER] [NAME...]

Each file that the planner plans becomes a PyTorch module. Its inference is compared with ONNX Runtime's, its step
within the budget with its own step without one: bits, and peaks by the allocator. Where the proven floor lies above
60%, the step is the one with the smallest peak. A Markdown table goes to standard output and next to the JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from models.published_files.fetch import FetchError, each, fetched
from models.published_files.listing import FILES, PublishedFile
from models.reporting.command_line import add_names, add_output, command_parser
from models.reporting.process import answer_of
from models.reporting.result_record import processor, save
from models.reporting.result_table import table

TIME_LIMIT_S = 600
TOLERANCE = 1e-4
"""Of an output to ONNX Runtime's, relative to its largest element, or to 1 if that is less."""


def measure(file: PublishedFile, cache: Path, folder: Path) -> dict[str, Any]:
    """Fetch and train one file, in a process of its own; a crash or a timeout is an ``error``."""
    listed = {"exporter": file.exporter, "sha256": file.sha256}
    try:
        path = fetched(file, cache, folder)
    except FetchError as error:
        return {**listed, "error": str(error)}
    arguments = json.dumps({"dims": dict(file.dims), "inputs": dict(file.inputs)})
    return listed | answer_of("models.published_files.trained_outcome", str(path), arguments, limit_s=TIME_LIMIT_S)


def summary(files: Mapping[str, Mapping[str, Any]]) -> str:
    """How many are built, agree with ONNX Runtime, and take a step to the bits of one without a budget."""
    built = [entry for entry in files.values() if "build_s" in entry]
    agreed = sum(entry.get("difference", 1.0) <= TOLERANCE for entry in built)
    stepped = [entry for entry in built if "equal" in entry]
    equal = sum(entry["equal"] for entry in stepped)
    within = sum(entry["equal"] and entry["budget"] != "min" for entry in stepped)
    return (
        f"{len(built)} of {len(files)} files become modules, {agreed} of them with ONNX Runtime's inference within "
        f"{TOLERANCE:g}. {len(stepped)} take a planned step, {within} within 60% and the others at their smallest "
        f"peak; {equal} have the bits of a step without a budget."
    )


def report(files: Mapping[str, Mapping[str, Any]]) -> str:
    """A Markdown table of the files, the summary, and what was refused or failed."""
    header = ["file", "exporter", "difference to ONNX Runtime", "budget", "bits", "peak without MB", "planned MB",
              "measured MB", "added time", "build s", "bind s"]  # fmt: skip
    rows, told = [], []
    for name, entry in files.items():
        if entry.get("refused") or "error" in entry:
            told.append(f"- {name}: {entry.get('refused') or entry['error']}")
        if "difference" not in entry:
            continue
        cells = [name, entry["exporter"], f"{entry['difference']:.0e}"]
        if "equal" in entry:
            peaks = [f"{entry[f'{which}_nbytes'] / 1e6:.2f}" for which in ("plain", "planned", "bound")]
            cells += [entry["budget"], "equal" if entry["equal"] else "differ", *peaks]
            cells += [f"+{100 * entry['overhead']:.1f}%", f"{entry['build_s']:.1f}", f"{entry['bind_s']:.1f}"]
        else:
            cells += ["-"] * 6 + [f"{entry['build_s']:.1f}", "-"]
        rows.append(cells)
    return "\n".join([table(header, rows), "", summary(files), "", *told]).rstrip() + "\n"


def page(record: Mapping[str, Any]) -> str:
    """The Markdown page of a results file."""
    return f"`{record['command']}` on {record['machine']}\n\n{report(record['files'])}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the named files, or all that are planned; 1 when one failed or its bits differ."""
    trained = [file for file in FILES if not file.refusal]
    parser = command_parser("models.published_files.training", __doc__)
    add_names(parser, [file.name for file in trained], what="file")
    add_output(parser)
    parser.add_argument("--cache", type=Path, help="folder that keeps the wheels")
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    for name, entry in each(trained, options.names, options.cache, measure):
        found[name] = entry
        print(f"{name}: {json.dumps(entry)}", file=sys.stderr, flush=True)
    print(report(found), end="")
    if options.output:
        record = {
            "command": "python -m models.published_files.training" + "".join(f" {name}" for name in options.names),
            "versions": {name: version(name) for name in ("ogc-plan", "onnx", "onnxruntime", "torch")},
            "machine": processor(),
            "files": found,
        }
        save(options.output, record, page(record))
    return int(any("error" in entry or entry.get("equal") is False for entry in found.values()))


if __name__ == "__main__":
    sys.exit(main())
