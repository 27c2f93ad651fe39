"""Grids of checkpoints at narrow cuts, in one or two levels: starting points for tight budgets.

A cut at position p is what must be held to run the ops from p on: the storages that cross it. Holding
k cuts and recomputing between them is Chen et al.'s sqrt(n) (arXiv 1604.06174) on arbitrary graphs;
temporary checkpoints inside each stretch are the second level of Griewank & Walther's nesting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...problem import Problem
from ..evaluation.evaluator import Array, Evaluator, Labels
from ..evaluation.labels import Label
from ..kernels.jit import compiled

_LEVEL_ONE = (0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 22, 29, 38, 50)
_LEVEL_TWO = (0, 1, 2, 3, 5, 8, 13)


@dataclass(frozen=True)
class Cuts:
    """nbytes[p]: bytes that cross position p (before op p); weight[p]: activation bytes made before p, rising.

    crossing[p]: the storages behind nbytes[p], rising.
    """

    nbytes: Array
    weight: Array
    crossing: list[Array]

    def spread(self, begin: int, end: int, count: int) -> list[int]:
        """``count`` narrow cuts strictly between two positions, about evenly spaced by activation bytes."""
        chosen = np.empty(count, dtype=np.int64)
        found = _spread(self.nbytes, self.weight, begin, end, chosen)
        return sorted(set(chosen[:found].tolist()))


@compiled
def _spread(nbytes: Array, weight: Array, begin: int, end: int, chosen: Array) -> int:
    """Fill ``chosen`` with the narrowest cut near each of so many targets, and return how many there are.

    Of equally narrow ones the nearest to its target. One may be chosen more than once, and targets have none near them.
    """
    count, found = len(chosen), 0
    low, high = weight[begin], weight[end]
    reach = max(1.0, (high - low) / (2 * (count + 1)))
    for k in range(1, count + 1):
        target = low + (high - low) * k / (count + 1)
        first, last = begin + 1, end
        while first < last:  # the first position that may not be too far below
            middle = (first + last) // 2
            if weight[middle] < target - (reach + 1.0):
                first = middle + 1
            else:
                last = middle
        best, nearest = -1, 0.0
        for position in range(first, end):
            far = abs(weight[position] - target)
            if far > reach:
                if weight[position] > target:
                    break
                continue
            if best < 0 or nbytes[position] < nbytes[best] or (nbytes[position] == nbytes[best] and far < nearest):
                best, nearest = position, far
        if best >= 0:
            chosen[found] = best
            found += 1
    return found


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
    nbytes = np.array([problem.nbytes[storages].sum() for storages in held], dtype=np.int64)
    return Cuts(nbytes, np.cumsum(weight), held)


def grids(evaluator: Evaluator) -> Iterator[Labels]:
    """Labellings that keep k cuts, with j temporary cuts between any two of them."""
    problem = evaluator.problem
    cuts = cuts_of(problem)
    free = ~evaluator.decided
    held = [storages[free[storages]] for storages in cuts.crossing]
    for level_one in _LEVEL_ONE:
        if level_one >= problem.op_count:
            break
        kept = cuts.spread(0, problem.op_count, level_one)
        base = evaluator.labels(Label.DROP)
        for position in kept:
            base[held[position]] = Label.KEEP
        for level_two in _LEVEL_TWO:
            labels = base.copy()
            for begin, end in pairwise([0, *kept, problem.op_count]):
                for position in cuts.spread(begin, end, level_two):
                    crossing = held[position]
                    labels[crossing[base[crossing] != Label.KEEP]] = Label.TEMPORARY
            yield labels
