"""Keep what is expensive: the results of convolutions, matrix products and attention; recompute the rest.

Mode "speed" of the TensorFlow package gradient-checkpointing, which keeps tensors of ops named
conv2d, Conv or MatMul; the policies that PyTorch users write for selective checkpointing are of this kind.

Deviations: the list has the ONNX names and PyTorch's own for the same products, recurrent ops, which
are sequences of matrix products, and fused attention; hidden buffers of a kept op are kept with it.
Where no op is on the list the original raises, here the plain step is the answer.
"""

from __future__ import annotations

from dataclasses import replace

from ...limits import NO_LIMITS, Limits
from ...problem import Problem
from ...solution import Solution
from ...training_graph import TrainingGraph
from ..evaluation.evaluator import Evaluator, Labels
from ..evaluation.labels import Label
from .articulation import carried, keep_only

NAME = "speed"
EXPENSIVE = frozenset(
    (
        # ONNX
        "conv", "convtranspose", "deformconv", "matmul", "gemm", "einsum", "attention", "multiheadattention",
        "groupqueryattention", "lstm", "gru", "rnn",
        # PyTorch
        "convolution", "conv1d", "conv2d", "conv3d", "mm", "addmm", "bmm", "baddbmm", "linear", "dot", "mv",
        "scaled_dot_product_attention",
    )
)  # fmt: skip
_FUSED_ATTENTION = ("scaled_dot_product", "flash_attention", "efficient_attention")


def is_expensive(op_type: str) -> bool:
    """Whether an op type is on the list, whatever its case, namespace (``aten.``) and overload (``.default``)."""
    parts = op_type.lower().replace("::", ".").removeprefix("aten.").split(".")
    name = parts[0].strip("_")
    return name in EXPENSIVE or any(kernel in name for kernel in _FUSED_ATTENTION)


def expensive_storages(graph: TrainingGraph) -> frozenset[int]:
    """Everything written by an expensive op, hidden buffers included."""
    return frozenset(s for op in graph.ops if is_expensive(op.op_type) for s in op.writes)


def labels(evaluator: Evaluator, budget_nbytes: int | None = None) -> Labels:
    """Labels of the one plan of this strategy; the budget plays no part."""
    graph = evaluator.problem.graph
    kept = expensive_storages(graph)
    if not kept:
        return evaluator.labels(Label.KEEP)
    return keep_only(evaluator, kept | carried(graph, ()))


def solve(
    problem: Problem,
    budget_nbytes: int | None = None,
    *,
    limits: Limits = NO_LIMITS,
    seed: int = 0,
) -> Solution:
    """Keep the results of expensive ops only; UNKNOWN when that one plan is above the budget."""
    evaluator = Evaluator(problem)
    solution = evaluator.solution(labels(evaluator), budget_nbytes, NAME)
    if expensive_storages(problem.graph):
        return solution
    return replace(solution, notes=("the graph has no convolution or matrix product to keep: nothing is recomputed",))
