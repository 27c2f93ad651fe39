"""Grids of checkpoints at narrow cuts, in one or two levels: starting points for tight budgets.

A cut at position p is what must be held to run the ops from p on: the storages that cross it. Holding
k cuts and recomputing between them is Chen et al.'s sqrt(n) (arXiv 1604.06174) on arbitrary graphs;
temporary checkpoints inside each stretch are the second level of Griewank & Walther's nesting.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..problem import Problem
from .evaluate import Array, Evaluator, Labels
from .labels import Label

_LEVEL_ONE = (0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 22, 29, 38, 50)
_LEVEL_TWO = (0, 1, 2, 3, 5, 8, 13)


@dataclass(frozen=True)
class Cuts:
    """nbytes[p]: bytes that cross position p (before op p); weight[p]: activation bytes made before p, rising.

    crossing[p]: the storages behind nbytes[p], rising.
    """

    nbytes: list[int]
    weight: list[int]
    crossing: list[Array]


def cuts_of(problem: Problem) -> Cuts:
    """Every cut of the forward order, positions 0..n."""
    graph, n = problem.graph, problem.op_count
    made, last_use = problem.producer, problem.producer.copy()
    for index, op in enumerate(graph.ops):
        for storage in op.reads:
            last_use[storage] = max(last_use[storage], index)
    crossing: list[list[int]] = [[] for _ in range(n + 1)]
    for storage in range(len(graph.storages)):
        if storage not in problem.pinned and problem.nbytes[storage] > 0:
            for position in range(int(made[storage]) + 1, int(last_use[storage]) + 1):
                crossing[position].append(storage)
    held = [np.array(storages, dtype=np.int64) for storages in crossing]
    weight = np.zeros(n + 1, dtype=np.int64)
    np.add.at(weight, made + 1, problem.nbytes)
    return Cuts([int(problem.nbytes[storages].sum()) for storages in held], np.cumsum(weight).tolist(), held)


def spread(cuts: Cuts, begin: int, end: int, count: int) -> list[int]:
    """``count`` narrow cuts strictly between two positions, about evenly spaced by activation bytes."""
    nbytes, weight = cuts.nbytes, cuts.weight
    low, high = weight[begin], weight[end]
    reach = max(1.0, (high - low) / (2 * (count + 1)))
    chosen: set[int] = set()
    for k in range(1, count + 1):
        target = low + (high - low) * k / (count + 1)
        window = (bisect_left(weight, target + side * (reach + 1), begin + 1, end) for side in (-1, 1))
        away = ((abs(weight[p] - target), p) for p in range(*window))
        near = [(nbytes[p], far, p) for far, p in away if far <= reach]
        if near:
            chosen.add(min(near)[2])
    return sorted(chosen)


def grids(evaluator: Evaluator) -> Iterator[Labels]:
    """Labellings that keep k cuts, with j temporary cuts between any two of them."""
    problem = evaluator.problem
    cuts = cuts_of(problem)
    free = ~evaluator.decided
    held = [storages[free[storages]] for storages in cuts.crossing]
    for level_one in _LEVEL_ONE:
        if level_one >= problem.op_count:
            break
        kept = spread(cuts, 0, problem.op_count, level_one)
        base = evaluator.labels(Label.DROP)
        for position in kept:
            base[held[position]] = Label.KEEP
        for level_two in _LEVEL_TWO:
            labels = base.copy()
            for begin, end in pairwise([0, *kept, problem.op_count]):
                for position in spread(cuts, begin, end, level_two):
                    crossing = held[position]
                    labels[crossing[base[crossing] != Label.KEEP]] = Label.TEMPORARY
            yield labels
