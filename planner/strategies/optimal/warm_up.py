"""Compile every kernel before a clock starts: a minute on a fresh machine, and then remembered (jit.py)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...graph import Storage
from ...problem import Problem, Scope, build_problem
from ...training_graph import BackwardOp, Gradient, OpCost, TrainingGraph, TrainingOp
from ..baselines import greedy, per_layer
from ..baselines.rotor import Rotor
from ..chain.chain import Chain
from ..evaluation.evaluator import Evaluator
from ..evaluation.labels import Label
from ..labelling.annealer import LabelAnnealer
from ..orders.order_for_plan import PlanOrders
from ..orders.reordered_problem import default_orders
from ..relaxation.stage_relaxation import StageRelaxation
from ..retention.annealer import RetentionAnnealer

_CHAIN = 24
_LONG_CHAIN = 720
"""Ops of a chain on which greedy works in batches."""


def prepare_kernels() -> None:
    """Compile or load every kernel: every search for a moment, on a chain, a long one and a diamond."""
    problem = _problem([(op - 1,) if op else () for op in range(_CHAIN)])
    evaluator = Evaluator(problem)
    budget = evaluator.evaluate(evaluator.labels(Label.KEEP)).peak_nbytes * 2 // 3
    for module in (greedy, per_layer):
        module.labels(evaluator, budget)
    dropped = evaluator.labels(Label.DROP)
    sequence = np.array(evaluator.decisions(dropped).sequence, dtype=np.int64)
    LabelAnnealer(evaluator, 0).run(dropped, 100, heat=0.1, levels=2)
    retention = RetentionAnnealer(evaluator, 0)
    retention.run(sequence, budget, 1000, heat=0.1)
    relaxed = StageRelaxation(problem)
    retention.from_stages(relaxed.solve(budget, (0, _CHAIN // 2)), 0.5)
    chain = Chain(evaluator, effort=0.01)
    chain.refine(budget)
    chain.best(budget)
    assert Rotor(evaluator).smallest
    long = Evaluator(_problem([(op - 1,) if op else () for op in range(_LONG_CHAIN)]))
    greedy.labels(long, long.evaluate(long.labels(Label.KEEP)).peak_nbytes * 2 // 3)
    diamond = Evaluator(_problem([(), (0,), (0,), (1,), (2,), (3, 4)]))
    kept = np.array(diamond.decisions(diamond.labels(Label.KEEP)).sequence, dtype=np.int64)
    PlanOrders(diamond.problem).better(diamond, default_orders(diamond.problem), kept, moves=10, seed=0)


def _problem(reads: Sequence[tuple[int, ...]]) -> Problem:
    """Op i writes storage i and its backward reads what it read and wrote; sizes and times vary a little."""
    count = len(reads)
    ops = tuple(TrainingOp(str(op), "", read, (op,), BackwardOp((*read, op), (op,))) for op, read in enumerate(reads))
    storages = tuple(Storage(str(op), 1 + op * 7 % 11) for op in range(count))
    gradients = tuple(Gradient(str(op), 1) for op in range(count))
    graph = TrainingGraph(ops, storages, gradients, (count - 1,), (count - 1,))
    return build_problem(graph, tuple(OpCost(1 + op * 5 % 7, 1) for op in range(count)), Scope.ACTIVATIONS)
