"""Read files exported at batch 1 and 2 at batch 8, and hold them against exports at batch 8.

    python -m models.architectures.rebatch -o models/results/rebatch.json

Right: as many ops, and the same store-all activation peak with workspace. The networks of the onnx package exist at one
batch; they are right if what their ops make is 8 times as large. Needs the ``models`` extra.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import onnx
import torch
from ogc_plan.planner.errors import OgcPlanError
from ogc_plan.planner.graph import Graph
from ogc_plan.planner.model import load_model
from ogc_plan.planner.onnx_import.reader import read_onnx

from models.architectures.case import Case
from models.architectures.cases import COMPARED
from models.export import export_module
from models.light import NAMES, light_path
from models.reporting import result_table
from models.reporting.command_line import add_names, add_output, command_parser
from models.reporting.result_record import publish

NEW, OLD = 8, (1, 2)


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one network at each old batch: "right", "wrong", or the refusal."""

    name: str
    outcomes: tuple[str, ...]


def of_export(case: Case, folder: Path) -> Row:
    """Compare the exports of one network."""
    module, inputs = case.positional()

    def peak(batch: int, new: int | None) -> tuple[int, int]:
        path = folder / f"{batch}.onnx"
        repeated = tuple(torch.cat([tensor] * NEW)[:batch] for tensor in inputs)
        onnx.save(export_module(module, repeated), path)
        model = load_model(str(path), device="cpu", batch=new)
        return len(model.training.ops), model.store_all().peak_activation_nbytes

    right = peak(NEW, None)

    def outcome(batch: int) -> str:
        try:
            return "right" if peak(batch, NEW) == right else "wrong"
        except OgcPlanError as error:
            return f"refused: {error}"

    return Row(case.name, tuple(outcome(batch) for batch in OLD))


def of_file(name: str) -> Row:
    """Compare a file of batch 1 with itself."""

    def made(graph: Graph) -> list[int]:
        storages = {graph.tensors[output].storage for op in graph.ops for output in op.outputs}
        return [graph.storages[storage].nbytes for storage in sorted(storages)]

    try:
        before, now = (made(read_onnx(light_path(name), batch=batch)) for batch in (None, NEW))
    except OgcPlanError as error:
        return Row(name, (f"refused: {error}",))
    return Row(name, ("right" if [NEW * nbytes for nbytes in before] == now else "wrong",))


def table(rows: Sequence[Row]) -> str:
    """Markdown: what became of each network, and the counts."""
    lines = [[row.name, *(outcome.split(":")[0] for outcome in row.outcomes)] for row in rows]
    lines = [[*line, *[""] * (1 + len(OLD) - len(line))] for line in lines]
    counts = []
    for position, batch in enumerate(OLD):
        found = Counter(line[1 + position] for line in lines if line[1 + position])
        shown = ", ".join(f"{found[kind]} {kind}" for kind in ("right", "refused", "wrong"))
        counts.append(f"- From batch {batch} to {NEW}: {shown}.")
    notes = [f"- {row.name}: {outcome}" for row in rows for outcome in row.outcomes if outcome.startswith("refused")]
    header = ["network", *(f"from batch {batch}" for batch in OLD)]
    return "\n".join([*counts, "", result_table.table(header, lines), "", *notes])


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the networks asked for (all by default), print the table and write the results."""
    parser = command_parser("models.architectures.rebatch", __doc__)
    cases = {
        name: case for name, case in COMPARED.items() if not case.full_size and find_spec(case.library) is not None
    }
    add_names(parser, [*cases, *NAMES])
    add_output(parser)
    options = parser.parse_args(arguments)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names or [*cases, *NAMES]:
            rows.append(of_file(name) if name in NAMES else of_export(cases[name], Path(folder)))
            print(f"{name}: {', '.join(rows[-1].outcomes)}", file=sys.stderr)
    publish(
        table(rows),
        options.output,
        script="models.architectures.rebatch",
        arguments=arguments,
        device="cpu",
        quantity="ops and store-all activation peak, against an export at the new batch",
        libraries={name: version(name) for name in ("transformers", "onnx", "onnxscript")},
        rows=[asdict(row) for row in rows],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
