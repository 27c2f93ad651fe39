"""Compile every kernel before a clock starts."""

from __future__ import annotations

import numpy as np

from ..graph import Storage
from ..problem import Scope, build_problem
from ..training import BackwardOp, Gradient, OpCost, TrainingGraph, TrainingOp
from . import greedy, knapsack, layers
from .anneal import Annealer
from .anneal_holds import HoldAnnealer
from .evaluate import Evaluator
from .labels import Label


def prepare_kernels() -> None:
    """Compile or load every kernel, on a problem of two ops."""
    ops = (
        TrainingOp("a", "", (), (0,), BackwardOp((0,), (0,))),
        TrainingOp("b", "", (0,), (1,), BackwardOp((0,), (1,))),
    )
    graph = TrainingGraph(ops, (Storage("a", 1), Storage("b", 1)), (Gradient("a", 1), Gradient("b", 1)), (1,), (1,))
    evaluator = Evaluator(build_problem(graph, (OpCost(1, 1),) * 2, Scope.ACTIVATIONS))
    for module in (greedy, layers, knapsack):
        module.labels(evaluator, 1)
    Annealer(evaluator, 0).run(evaluator.labels(Label.DROP), 1, 8, heat=0.1, levels=2)
    sequence = np.array(evaluator.decisions(evaluator.labels(Label.DROP)).sequence, dtype=np.int64)
    HoldAnnealer(evaluator, 0).run(sequence, 1, 8, heat=0.1)
