"""Does every architecture train by its plan, bit by bit and inside its bytes, or is it refused by name?

    python -m models.architectures.stress -o models/results/stress_architectures.json

Networks of `transformers`, `diffusers` and torch with random weights, few layers and small widths, in training mode
with dropout, each bound within 60% of the store-all peak and compared with eager training (outcome.py says in
what). Results are written after every network; ``--resume`` keeps the outcomes that the file
has already. Each network runs in a process of its own. The exit code is 1 where any outcome is wrong.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from models.architectures.cases import STRESSED
from models.reporting.command_line import add_names, add_output, command_parser
from models.reporting.process import answer_of
from models.reporting.result_record import write
from models.reporting.result_table import table

TIME_LIMIT_S = 900
RESULTS = ("bound", "refused", "wrong", "unbuilt")


def outcome(name: str, *, module: str = "models.architectures.outcome") -> dict[str, Any]:
    """The outcome of a network; one that ends its process or takes too long is wrong."""
    found, case = answer_of(module, name, limit_s=TIME_LIMIT_S), STRESSED[name]
    if "error" not in found:
        return found
    return {"name": name, "kind": case.kind, "library": case.library, "result": "wrong", "why": found["error"]}


def report(rows: Sequence[dict[str, Any]]) -> str:
    """Counts by kind, then every network with its peak or the reason it is refused, as Markdown."""
    names = {row["name"] for row in rows}
    kinds = sorted({row["kind"] for row in rows}, key=[case.kind for case in STRESSED.values()].index)
    count = Counter((row["kind"], row["result"]) for row in rows)
    total = Counter(row["result"] for row in rows)
    counts = [[kind, *(str(count[kind, result]) for result in RESULTS)] for kind in kinds]
    counts.append(["all", *(str(total[result]) for result in RESULTS)])
    lines = [[row["name"], row["kind"], row.get("network", ""), row["result"], *_figures(row)] for row in rows]
    reasons = [f"- {row['name']} ({row['result']}): {row['why']}" for row in rows if row.get("why")]
    header = ["network", "kind", "class", "result", "ops", "recomputed", "peak kB", "measured - predicted B"]
    return "\n\n".join((
        "Bound: two steps of AdamW leave behind losses, gradients, buffers, parameters and generator states equal in\n"
        "every bit to eager training, and the measured peak is that predicted, inside the budget.",
        table(["kind", *RESULTS], counts),
        table(header, lines),
        "\n".join(reasons),
        f"Of the list, {len(STRESSED.keys() - names)} are not examined yet (the command goes on with `--resume`): "
        f"{', '.join(name for name in STRESSED if name not in names) or 'none'}.",
    ))  # fmt: skip


def _figures(row: dict[str, Any]) -> list[str]:
    if "peaks" not in row:
        return ["", "", "", ""]
    pairs = row["peaks"].values()
    differences = [pair["measured_nbytes"] - pair["predicted_nbytes"] for pair in pairs]
    worst = max(differences, key=abs, default=0)
    return [str(row["ops"]), str(row["recomputed"]), f"{row['planned_nbytes'] / 1e3:.1f}", f"{worst:+,}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine the networks asked for (all by default), write the results after each, and print the report."""
    parser = command_parser("models.architectures.stress", __doc__)
    add_names(parser, STRESSED)
    add_output(parser)
    parser.add_argument("--resume", action="store_true", help="keep the outcomes that the file has already")
    options = parser.parse_args(arguments)
    wanted = options.names or list(STRESSED)
    found: dict[str, dict[str, Any]] = {}
    if options.resume and options.output and options.output.exists():
        kept = json.loads(options.output.read_text())["rows"]
        found = {row["name"]: row for row in kept if row["name"] in STRESSED and row["name"] not in options.names}
    for name in (name for name in wanted if name not in found):
        found[name] = row = outcome(name)
        print(f"{row['name']}: {row['result']} {row.get('why', '')}", file=sys.stderr, flush=True)
        if options.output:
            _write(options.output, [found[name] for name in STRESSED if name in found])
    rows = [found[name] for name in STRESSED if name in found]
    print(report(rows))
    return int(any(row["result"] == "wrong" for row in rows))


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    write(
        path,
        report(rows),
        script="models.architectures.stress",
        arguments=["-o", "models/results/stress_architectures.json"],
        device="cpu",
        quantity="activation peaks of one training step in bytes",
        libraries={name: version(name) for name in ("transformers", "diffusers")},
        rows=rows,
    )


if __name__ == "__main__":
    sys.exit(main())
