"""Place every allocation of planned steps in one arena, and hold its size against the most bytes alive together.

    python -m models.arena -o models/results/arena.json

Ten graphs of the plan benchmark at five budgets, plans of effort fast. Exports need torch. Work is counted, so sizes
are the same on any machine.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ogc_plan.planner import load_model, plan
from ogc_plan.planner.arena.step_arena import step_arena
from ogc_plan.planner.errors import InfeasibleBudgetError

from models.plan_benchmark.sources import SOURCES
from models.reporting.command_line import add_names, add_output, command_parser
from models.reporting.option_values import folder
from models.reporting.result_record import save
from models.reporting.result_table import compact

NETWORKS = {
    "vgg19": "VGG-19",
    "resnet50": "ResNet-50",
    "densenet121": "DenseNet-121",
    "inception_v3": "Inception-v3",
    "nasnet_mobile": "NASNet-A mobile",
    "light-shufflenet": "ShuffleNet",
    "unet": "U-Net",
    "ddpm_cifar": "DDPM, 32 px",
    "gpt12": "GPT-2, 12 layers",
    "torch-vit_b16": "ViT-B/16",
}
"""Graphs of the plan benchmark, and their names on the page."""
BUDGETS = ("80%", "60%", "50%", "40%", "30%")


def measured(name: str, files: Path) -> dict[str, Any]:
    """The arenas of one graph by budget, with and without what is alive after the step; None without a plan."""
    model = load_model(SOURCES[name].file(files), batch=SOURCES[name].batch)
    cells: dict[str, Any] = {}
    for budget in BUDGETS:
        try:
            made = plan(model, budget, effort="fast")
        except InfeasibleBudgetError:
            cells[budget] = None
            continue
        cells[budget] = {
            key: {
                "allocations": len(found.lives),
                "peak_nbytes": found.peak_nbytes,
                "arena_nbytes": found.placement.nbytes,
                "bound_nbytes": found.placement.bound_nbytes,
            }
            for key, escaping in (("step", True), ("inside", False))
            for found in (step_arena(made, escaping=escaping),)
        }
        print(f"{name} {budget}: {cells[budget]}", file=sys.stderr, flush=True)
    return {"cells": cells}


def report(networks: Mapping[str, Any]) -> str:
    """One row a graph: by how much the arena is larger than the peak, with and without what escapes."""
    rows = []
    for name, entry in networks.items():
        found = [cell for cell in entry["cells"].values() if cell]
        counts = [cell["step"]["allocations"] for cell in found]
        span = f"{min(counts):,} to {max(counts):,}" if counts else "-"
        rows.append([NETWORKS[name], span, *(_cell(entry["cells"][budget]) for budget in BUDGETS)])
    worst = []
    for budget in BUDGETS:
        found = [entry["cells"][budget] for entry in networks.values() if entry["cells"][budget]]
        largest = (max((_above(cell[key]) for cell in found), default=0.0) for key in ("step", "inside"))
        worst.append(" / ".join(f"{above:.2%}" for above in largest))
    rows.append(["largest", "", *worst])
    header = ["arena above the peak: of everything / of what ends with the step", "allocations"]
    return compact([*header, *(f"at {budget}" for budget in BUDGETS)], rows)


def _above(cell: Mapping[str, int]) -> float:
    return cell["arena_nbytes"] / cell["peak_nbytes"] - 1


def _cell(cell: Mapping[str, Any] | None) -> str:
    return "no plan" if cell is None else " / ".join(f"{_above(cell[key]):.2%}" for key in ("step", "inside"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for."""
    parser = command_parser("models.arena", __doc__)
    add_names(parser, NETWORKS, what="graph")
    add_output(parser)
    parser.add_argument("--files", type=folder, help="folder of the graphs' files (default: one in /tmp)")
    options = parser.parse_args(arguments)
    files = options.files or Path(tempfile.gettempdir()) / "ogc-plan-arena"
    files.mkdir(parents=True, exist_ok=True)
    networks = {name: measured(name, files) for name in options.names or NETWORKS}
    print(report(networks))
    if options.output is not None:
        made_with = {name: version(name) for name in ("ogc-plan", "ortools", "onnx")}
        record = {"command": "python -m models.arena", "versions": made_with, "networks": networks}
        save(options.output, record, f"`python -m models.arena`\n\n{report(networks)}\n")


if __name__ == "__main__":
    main()
