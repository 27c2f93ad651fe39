"""The time of a backward from that of its forward: the ratio of a CPU's roofline, corrected for the op type.

The corrections are those that PyTorch's kernels need on networks: ``python -m models.profiles.ratios``
(models/README.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import Graph
from ..training_graph import TrainingGraph
from .devices import DEVICES
from .roofline import roofline

CORRECTIONS: dict[str, float] = {}


def ratios(graph: Graph, training: TrainingGraph) -> list[float | None]:
    """Backward over forward of every op by the roofline of a CPU; None for an op that has one of them alone."""
    costs = roofline(graph, training, DEVICES["cpu"])
    return [cost.backward_ns / cost.forward_ns if cost.backward_ns and cost.forward_ns else None for cost in costs]


def backward_times(graph: Graph, training: TrainingGraph, forward_ns: Sequence[int]) -> list[int]:
    """The ns of every backward from those of the forwards; where there is no ratio, as of views, by the roofline."""
    costs, found = roofline(graph, training, DEVICES["cpu"]), []
    for op, here, cost, ratio in zip(training.ops, forward_ns, costs, ratios(graph, training), strict=True):
        known = 1.0 if graph.ops[op.forward].domain else CORRECTIONS.get(op.op_type, 1.0)
        found.append(cost.backward_ns if ratio is None else round(here * ratio * known))
    return found
