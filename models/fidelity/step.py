"""How far a plan's memory is from a real torch step.

    python -m models.fidelity.step -o models/results/fidelity.json

For each network: run one eager training step that recomputes nothing, export the same module as a bare
file, simulate it, and compare the store-all activation peaks. Twice: storages alone (storage meter against
a simulation without workspace), then everything (the allocator's record against the whole simulation).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read once, when torch loads

import torch
from ogc_plan.planner.model import Model, load_model, store_all_timeline
from ogc_plan.planner.training_graph import OpCost

from models.export import export_entry
from models.meters import allocator_meter
from models.meters.storage_meter import measure_step, training_step
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
    storages = measure_step(module, inputs).activations.nbytes
    module.zero_grad(set_to_none=True)
    gc.collect()
    events = allocator_meter.record(lambda: training_step(module, inputs))
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    allocated = allocator_meter.peaks(events, without=gradients)
    return storages, allocated.activation_nbytes, allocated.operator


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


def table(rows: Sequence[Comparison]) -> str:
    """The comparison as a Markdown table, in MB (10^6 bytes)."""
    lines = [
        "| model | input | storages: measured MB | simulated MB | difference |"
        " allocator: measured MB | simulated MB | difference |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = [row.model, row.input]
        for pair, digits in ((row.storages, 4), (row.allocated, 2)):
            cells += [f"{pair.measured_nbytes / 1e6:.1f}", f"{pair.simulated_nbytes / 1e6:.1f}"]
            cells.append(f"{pair.difference_percent:+.{digits}f}%")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def as_record(row: Comparison) -> dict[str, object]:
    """A row with its differences, for JSON."""
    result: dict[str, object] = asdict(row)
    for name, pair in (("storages", row.storages), ("allocated", row.allocated)):
        result[name] = asdict(pair) | {"difference_percent": round(pair.difference_percent, 6)}
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the networks asked for, print the table and write the results."""
    parser = argparse.ArgumentParser(prog="python -m models.fidelity", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of the zoo (default: {', '.join(NETWORKS)})")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in ZOO]
    if unknown:
        parser.error(f"no network is called {unknown[0]!r}; choose from {', '.join(ZOO)}")
    rows = []
    for name in options.names or NETWORKS:
        entry = ZOO[name]
        rows.append(compare(entry, entry.small_batch, entry.small_extent))
        print(f"{name}: done", file=sys.stderr)
    print(table(rows))
    if options.output:
        record = {
            "command": "python -m models.fidelity",
            "quantity": "activation peak of one eager training step without recomputation, bytes",
            "device": f"cpu, {platform.machine()}",
            "versions": {name: version(name) for name in ("torch", "onnx", "onnxscript", "ogc-plan")},
            "rows": [as_record(row) for row in rows],
        }
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(record, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
