"""The time of a backward from that of its forward: the ratio of a CPU's roofline, corrected for the op type.

The corrections are those that PyTorch's kernels need on networks: ``python -m models.profiles.ratios``
(models/README.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import Graph
from ..training_graph import OpCost, TrainingGraph
from .devices import DEVICES
from .roofline import roofline

CORRECTIONS = {
    "Add": 1.2, "Attention": 0.98, "AveragePool": 0.76, "BatchNormalization": 0.4, "Conv": 1.15,
    "ConvTranspose": 0.68, "Dropout": 0.22, "Gather": 2.06, "Gelu": 0.97, "Gemm": 3.13, "Identity": 1.7, "LSTM": 1.59,
    "LayerNormalization": 1.18, "MatMul": 0.91, "MaxPool": 0.08, "Mul": 3.57, "Pow": 0.79, "ReduceMean": 1.87,
    "Relu": 1.41, "Reshape": 1.81, "Softmax": 0.76, "Where": 1.57, "rsqrt": 3.33,
}  # fmt: skip


def ratios(graph: Graph, training: TrainingGraph) -> list[float | None]:
    """Backward over forward of every op by the roofline of a CPU; None for an op that has one of them alone."""
    return [_ratio(cost) for cost in roofline(graph, training, DEVICES["cpu"])]


def backward_times(graph: Graph, training: TrainingGraph, forward_ns: Sequence[int]) -> list[int]:
    """The ns of every backward from those of the forwards; where there is no ratio, as of views, by the roofline."""
    costs, found = roofline(graph, training, DEVICES["cpu"]), []
    for op, here, cost in zip(training.ops, forward_ns, costs, strict=True):
        ratio, known = _ratio(cost), 1.0 if graph.ops[op.forward].domain else CORRECTIONS.get(op.op_type, 1.0)
        found.append(cost.backward_ns if ratio is None else round(here * ratio * known))
    return found


def _ratio(cost: OpCost) -> float | None:
    return cost.backward_ns / cost.forward_ns if cost.backward_ns and cost.forward_ns else None
