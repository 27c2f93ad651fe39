"""Measure how long the backward of each op type takes, given its forward, in PyTorch over networks.

python -m models.profiles.ratios -o models/results/backward_ratios.json

Estimated is the measured forward times the ratio of a CPU's roofline. The correction of an op type is the sum of its
measured backwards over the sum of the estimated ones, over the calls of all networks, so that long calls count most.
The dictionary printed at the end is that of planner/costs/backward_ratios.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from ogc_plan.adapters.pytorch import from_onnx
from ogc_plan.planner import load_model
from ogc_plan.planner.costs.backward_ratios import ratios

from models.profiles.networks import CALIBRATED, file_of, run
from models.profiles.torch_ops import call_times
from models.reporting.result_table import compact


def measured(name: str, folder: Path) -> dict[str, list[float]]:
    """Sums over the calls of each op type of a network: calls, ns of measured and of estimated backwards."""
    path = file_of(name, folder)
    model, module = load_model(path), from_onnx(path)
    assert model.graph is not None
    times = call_times(module, module.example_arguments())
    found: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for op, ratio in zip(model.training.ops, ratios(model.graph, model.training), strict=True):
        took = times.get(op.name)
        if took is not None and ratio is not None and took.forward_ns and took.backward_ns:
            for at, more in enumerate((1, took.backward_ns, took.forward_ns * ratio)):
                found[op.op_type][at] += more
    path.unlink()
    return dict(found)


def corrections(networks: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """The correction of each op type over all networks."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for kinds in networks.values():
        for kind, (_, took, estimated) in kinds.items():
            sums[kind][0] += took
            sums[kind][1] += estimated
    return {kind: round(took / estimated, 2) for kind, (took, estimated) in sorted(sums.items())}


def report(networks: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """The table of op types, and the dictionary."""
    found, rows = corrections(networks), []
    for kind, correction in found.items():
        own = [sums[kind] for sums in networks.values() if kind in sums]
        apart = sorted(took / estimated for _, took, estimated in own)
        spread = f"{apart[0]:.2f} to {apart[-1]:.2f}"
        rows.append([kind, f"{sum(entry[0] for entry in own):.0f}", str(len(own)), f"{correction:.2f}", spread])
    listed = ", ".join(f'"{kind}": {correction}' for kind, correction in found.items())
    table = compact(["op type", "calls", "networks", "measured / estimated", "of single networks"], rows)
    return f"{table}\n\n```python\nCORRECTIONS = {{{listed}}}\n```"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for."""
    quantity = "calls, ns of measured backwards and ns of estimated ones, summed over the calls of an op type"
    run("models.profiles.ratios", __doc__, CALIBRATED, measured, report, quantity, arguments)


if __name__ == "__main__":
    main()
