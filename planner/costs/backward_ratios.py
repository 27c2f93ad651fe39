"""The time of a backward from that of its forward: ratios that PyTorch's kernels have on networks.

The ratios are those of ``python -m models.profiles.ratios`` (models/README.md), for a backward that makes the
gradients of all inputs; one that makes fewer takes the share of the arithmetic that it does.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import Graph
from ..training_graph import TrainingGraph
from .devices import DEVICES
from .flops import arithmetic
from .roofline import roofline

RATIOS: dict[str, float] = {}


def share(graph: Graph, forward: int, gives: Sequence[int]) -> float:
    """The part of the backward's arithmetic that the gradients of the inputs at ``gives`` take; 1 if it has none."""
    op = graph.ops[forward]
    work = arithmetic(op, graph)
    whole = work.backward(range(len(op.inputs)))
    return work.backward(gives) / whole if whole else 1.0


def backward_times(graph: Graph, training: TrainingGraph, forward_ns: Sequence[int]) -> list[int]:
    """The ns of every backward; of an op type without a ratio by the roofline of a CPU, as those of views."""
    found = []
    for op, here, cost in zip(training.ops, forward_ns, roofline(graph, training, DEVICES["cpu"]), strict=True):
        ratio = None if graph.ops[op.forward].domain else RATIOS.get(op.op_type)
        if op.backward is None or not cost.backward_ns or not (here and cost.forward_ns):
            found.append(cost.backward_ns)
        elif ratio is None:
            found.append(round(here * cost.backward_ns / cost.forward_ns))
        else:
            found.append(round(here * ratio * share(graph, op.forward, [edge.position for edge in op.backward.gives])))
    return found
