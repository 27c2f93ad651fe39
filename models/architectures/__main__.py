"""Exports of random-weight `transformers` and `diffusers` models: planned, and held against real training steps.

    python -m models.architectures -o models/results/architectures.json

For each network: run one eager training step that recomputes nothing under the storage meter, export the same
module as a bare file, read it, compare the store-all activation peaks, and plan 60% and 40%. Full-size networks
are built on the meta device and only exported, read and planned. Needs the ``models`` extra. An export that
torch or transformers refuses and a file that the planner refuses are named with the reason.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

import onnx
import torch
from ogc_plan.planner.errors import InfeasibleBudgetError
from ogc_plan.planner.model import Model, load_model
from ogc_plan.planner.pipeline import plan

from models.architectures.case import Case
from models.architectures.cases import COMPARED
from models.architectures.notes import NOTES
from models.export import OPSET, export_module
from models.fidelity.step import Pair, simulated_peaks
from models.meters.storage_meter import measure_step
from models.reporting import result_table
from models.reporting.command_line import add_names, add_output, command_parser
from models.reporting.result_record import publish

BUDGETS = ("60%", "40%")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one budget: a plan with its recomputation and gap in shares of a step, or why there is none."""

    budget: str
    status: str
    overhead: float | None
    gap: float | None
    seconds: float
    smallest_nbytes: int | None = None
    floor_nbytes: int | None = None


@dataclass(slots=True)
class Row:
    """One network. ``storages`` are store-all activation peaks without workspace."""

    name: str
    library: str
    size: str
    opset: int = 0
    nodes: int = 0
    ops: int = 0
    storages: Pair | None = None
    difference_percent: float | None = None
    with_workspace_nbytes: int = 0
    measured_at: str = ""
    parameter_nbytes: int = 0
    assumed: tuple[str, ...] = ()
    outcomes: list[Outcome] = field(default_factory=list)
    failed: str = ""
    note: str = ""


def one_line(error: BaseException) -> str:
    """The kind of an error and the innermost reason it gives, shortened to one line."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = " ".join(str(cause).split())
    return f"{type(cause).__name__}: {text[:240]}"


def planned(model: Model, budget: str) -> Outcome:
    """Plan one budget with the default effort."""
    started = time.perf_counter()
    try:
        made = plan(model, budget)
    except InfeasibleBudgetError as error:
        status = "proven infeasible" if error.proven else "no plan found"
        spent = round(time.perf_counter() - started, 2)
        return Outcome(budget, status, None, None, spent, error.smallest_known_nbytes, error.lower_bound_nbytes)
    spent = round(time.perf_counter() - started, 2)
    return Outcome(budget, made.certificate.status, made.time.overhead, made.gap, spent)


def read(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], row: Row, folder: Path) -> Model:
    """Export and read one module; enters what it consists of into ``row``."""
    proto = export_module(module, inputs)
    path = folder / f"{row.name}.onnx"
    path.write_bytes(proto.SerializeToString())
    model = load_model(path, device="cpu")
    row.opset, row.nodes, row.ops = OPSET, len(proto.graph.node), len(model.training.ops)
    row.parameter_nbytes = model.training.stationary.parameter_nbytes
    row.assumed = model.training.assumed
    return model


def examine(case: Case) -> Row:
    """Everything about one network; a failure is entered into its row with the reason."""
    same_in_float32 = NOTES.get(case.name.removesuffix("_bf16"), "")
    row = Row(case.name, case.library, case.size, note=NOTES.get(case.name, same_in_float32))
    try:
        with tempfile.TemporaryDirectory() as folder:
            _examine(case, row, Path(folder))
    except Exception as error:
        row.failed = one_line(error)
    gc.collect()
    return row


def _examine(case: Case, row: Row, folder: Path) -> None:
    module, inputs = case.positional()
    if not case.full_size:
        measured = measure_step(module, inputs).activations
        module.zero_grad(set_to_none=True)
        row.measured_at = measured.operator
    model = read(module, inputs, row, folder)
    simulated, row.with_workspace_nbytes = simulated_peaks(model)
    if not case.full_size:
        row.storages = Pair(measured.nbytes, simulated)
        row.difference_percent = round(row.storages.difference_percent, 4)
    row.outcomes = [planned(model, budget) for budget in BUDGETS]


def _cell(outcome: Outcome, whole_nbytes: int) -> str:
    if outcome.overhead is not None and outcome.gap is not None:
        return f"{100 * outcome.overhead:.2f} ({100 * outcome.gap:.2f})"
    floor = f"{100 * (outcome.floor_nbytes or 0) / whole_nbytes:.0f}%"
    return f"{outcome.status}, floor {floor}"


def table(rows: Sequence[Row]) -> str:
    """Markdown: peaks in MB, recomputation in % of a step with the gap to the proven bound in brackets."""
    header = ["network", "input", "opset", "nodes", "ops", "measured MB", "simulated MB", "difference", *BUDGETS, "s"]
    lines, notes = [], []
    for row in rows:
        if row.failed:
            lines.append([row.name, row.size, "", "", "", "failed", "", "", "", "", ""])
            notes.append(f"- {row.name}: {row.failed}")
            continue
        pair = row.storages
        peaks = ["", result_table.megabytes(row.with_workspace_nbytes), ""]
        if pair is not None:
            peaks = [f"{pair.measured_nbytes / 1e6:.2f}", f"{pair.simulated_nbytes / 1e6:.2f}"]
            peaks.append(f"{pair.difference_percent:+.2f}%")
        cells = [_cell(outcome, row.with_workspace_nbytes) for outcome in row.outcomes]
        slowest = max(outcome.seconds for outcome in row.outcomes)
        lines.append(
            [row.name, row.size, str(row.opset), str(row.nodes), str(row.ops), *peaks, *cells, f"{slowest:.1f}"]
        )
        if row.note:
            notes.append(f"- {row.name}: {row.note}")
    return "\n".join([result_table.table(header, lines), "", *notes])


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine the networks asked for (all by default), print the table and write the results."""
    parser = command_parser("models.architectures", __doc__)
    add_names(parser, COMPARED)
    add_output(parser)
    options = parser.parse_args(arguments)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    rows = []
    for name in options.names or COMPARED:
        started = time.perf_counter()
        rows.append(examine(COMPARED[name]))
        print(f"{name}: {rows[-1].failed or 'done'}, {time.perf_counter() - started:.0f} s", file=sys.stderr)
    publish(
        table(rows),
        options.output,
        script="models.architectures",
        arguments=arguments,
        device="cpu",
        quantity="store-all activation peak of one eager training step, bytes; the simulation without workspace",
        libraries={name: version(name) for name in ("transformers", "diffusers", "onnx", "onnxscript")},
        newest_opset_known=onnx.defs.onnx_opset_version(),
        rows=[asdict(row) for row in rows],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
