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
from models.reporting.result_table import megabytes, table
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


@dataclass(frozen=True, slots=True)
class Comparison:
    """One network's store-all activation peak: of storages alone, and with workspace as the allocator sees it."""

    model: str
    input: str
    storages: Pair
    allocated: Pair
    measured_at: str


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


def compare(entry: Entry, batch: int, extent: int) -> Comparison:
    """Measure and simulate one network."""
    storages, allocated, operator = measured_peaks(entry, batch, extent)
    bare, whole = simulated_peaks(exported(entry, batch, extent))
    shape = entry.describe(batch, extent)
    return Comparison(entry.name, shape, Pair(storages, bare), Pair(allocated, whole), operator)


def report(rows: Sequence[Comparison]) -> str:
    """The comparison as a Markdown table, in MB (10^6 bytes)."""
    sides = ("measured MB", "simulated MB", "difference")
    header = ["model", "input", *(f"{meter}: {side}" for meter in ("storages", "allocator") for side in sides)]
    lines = []
    for row in rows:
        cells = [row.model, row.input]
        for pair in (row.storages, row.allocated):
            cells += [megabytes(pair.measured_nbytes), megabytes(pair.simulated_nbytes)]
            cells.append(f"{pair.difference_percent:+.4f}%")
        lines.append(cells)
    return table(header, lines)


def as_record(row: Comparison) -> dict[str, Any]:
    """A row with its differences, for JSON."""
    result = asdict(row)
    for name, pair in (("storages", row.storages), ("allocated", row.allocated)):
        result[name] |= {"difference_percent": round(pair.difference_percent, 6)}
    return result


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
        rows=[as_record(row) for row in rows],
    )
    return 0
