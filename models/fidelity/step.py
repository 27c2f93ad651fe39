"""How far the simulated memory of a plain step is from the memory of a real step.

For each network: run one eager training step that recomputes nothing, export the same module as a bare file, simulate
it, and compare the activation peaks. Storages alone are compared with a simulation without workspace; everything that
the allocator records is compared with the whole simulation.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from ogc_plan.planner.model import Model, load_model, store_all_timeline
from ogc_plan.planner.training_graph import OpCost
from torch import Tensor, nn

from models.export import export_entry
from models.meters.step_meters import Meter, StepPeak, by_allocator, by_storages, clear_gradients
from models.meters.storage_meter import training_step
from models.reporting.command_line import add_names
from models.reporting.result_record import publish
from models.reporting.result_table import table
from models.zoo import ZOO, Entry

NETWORKS = ("resnet50", "gpt2", "vit_b16", "unet")


@dataclass(frozen=True, slots=True)
class Pair:
    """One quantity measured in torch and simulated by the planner, in bytes."""

    measured_nbytes: int
    simulated_nbytes: int

    @property
    def difference_percent(self) -> float:
        """How much the simulation is above (positive) or below the measurement."""
        return 100 * (self.simulated_nbytes / self.measured_nbytes - 1)


def measured_peaks(entry: Entry, batch: int, extent: int) -> tuple[int, int, str]:
    """Activation peak by storages, by the allocator, and the operator in which the latter sits."""
    torch.manual_seed(0)
    module, inputs = entry.build(extent).train(), entry.inputs(batch, extent)
    storages, allocated = (_plain_step(meter, module, inputs) for meter in (by_storages, by_allocator))
    return storages.activation_nbytes, allocated.activation_nbytes, allocated.operator


def _plain_step(meter: Meter, module: nn.Module, inputs: tuple[Tensor, ...]) -> StepPeak:
    clear_gradients(module, inputs)
    return meter(lambda: training_step(module, inputs), module, inputs)


def exported(entry: Entry, batch: int, extent: int) -> Model:
    """The planner's view of the exported file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{entry.name}.onnx"
        path.write_bytes(export_entry(entry, batch=batch, extent=extent).SerializeToString())
        return load_model(path, device="cpu")


def simulated_peaks(model: Model) -> tuple[int, int]:
    """Store-all activation peak without and with estimated workspace."""
    idle = tuple(OpCost(cost.forward_ns, cost.backward_ns) for cost in model.costs)
    storages = store_all_timeline(model.training, idle)[1]
    return storages.peak_activation_nbytes, model.store_all().peak_activation_nbytes


def compare(entry: Entry, batch: int, extent: int) -> dict[str, Any]:
    """Measure and simulate one network's store-all activation peak: of storages alone, and as the allocator sees it."""
    storages, allocated, operator = measured_peaks(entry, batch, extent)
    bare, whole = simulated_peaks(exported(entry, batch, extent))
    pairs = {"storages": Pair(storages, bare), "allocated": Pair(allocated, whole)}
    told = {
        name: asdict(pair) | {"difference_percent": round(pair.difference_percent, 6)} for name, pair in pairs.items()
    }
    return {"model": entry.name, "input": entry.describe(batch, extent), **told, "measured_at": operator}


def report(rows: Sequence[dict[str, Any]]) -> str:
    """The comparisons as a Markdown table, in MB (10^6 bytes)."""
    header = ["model", "input", "measured MB", "simulated MB", "difference"]
    header += ["allocator MB", "with workspace MB", "difference"]
    lines = []
    for row in rows:
        cells = [row["model"], row["input"]]
        for pair in (row["storages"], row["allocated"]):
            cells += [f"{pair[key] / 1e6:.2f}" for key in ("measured_nbytes", "simulated_nbytes")]
            cells.append(f"{pair['difference_percent']:+.2f}%")
        lines.append(cells)
    return table(header, lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this kind."""
    add_names(parser, ZOO, NETWORKS)


def run(options: argparse.Namespace) -> int:
    """Compare the networks asked for."""
    rows = []
    for name in options.names or NETWORKS:
        entry = ZOO[name]
        rows.append(compare(entry, entry.small_batch, entry.small_extent))
        print(f"{name}: done", file=sys.stderr)
    publish(
        report(rows),
        options.output,
        script="models.fidelity",
        arguments=options.arguments,
        device="cpu",
        quantity="activation peak of one eager training step without recomputation, bytes",
        rows=rows,
    )
    return 0
