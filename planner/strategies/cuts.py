"""Grids of checkpoints at narrow cuts, in one or two levels: starting points for tight budgets.

A cut at position p is what must be held to run the ops from p on: the storages that cross it. Holding
k cuts and recomputing between them is Chen et al.'s sqrt(n) (arXiv 1604.06174) on arbitrary graphs;
temporary checkpoints inside each stretch are the second level of Griewank & Walther's nesting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..problem import Problem
from .evaluate import Evaluator, Labels
from .labels import Label

_LEVEL_ONE = (0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 22, 29, 38, 50)
_LEVEL_TWO = (0, 1, 2, 3, 5, 8, 13)


@dataclass(frozen=True)
class Cuts:
    """nbytes[p]: bytes that cross position p (before op p); weight[p]: activation bytes made before p."""

    nbytes: NDArray[np.int64]
    weight: NDArray[np.int64]
    crossing: tuple[frozenset[int], ...]


def cuts_of(problem: Problem) -> Cuts:
    """Every cut of the forward order, positions 0..n."""
    graph, n = problem.graph, problem.op_count
    last_use = problem.producer.copy()
    for index, op in enumerate(graph.ops):
        for storage in op.reads:
            last_use[storage] = max(last_use[storage], index)
    made = problem.producer
    crossing: list[set[int]] = [set() for _ in range(n + 1)]
    for storage in range(len(graph.storages)):
        if storage not in problem.pinned and problem.nbytes[storage] > 0:
            for position in range(int(made[storage]) + 1, int(last_use[storage]) + 1):
                crossing[position].add(storage)
    nbytes = np.array([sum(int(problem.nbytes[s]) for s in held) for held in crossing], dtype=np.int64)
    weight = np.zeros(n + 1, dtype=np.int64)
    for storage in range(len(graph.storages)):
        weight[int(made[storage]) + 1] += problem.nbytes[storage]
    return Cuts(nbytes, np.cumsum(weight), tuple(frozenset(held) for held in crossing))


def spread(cuts: Cuts, begin: int, end: int, count: int) -> list[int]:
    """``count`` narrow cuts strictly between two positions, about evenly spaced by activation bytes."""
    low, high = int(cuts.weight[begin]), int(cuts.weight[end])
    chosen: list[int] = []
    for k in range(1, count + 1):
        target = low + (high - low) * k / (count + 1)
        reach = max(1.0, (high - low) / (2 * (count + 1)))
        near = [
            (int(cuts.nbytes[p]), abs(int(cuts.weight[p]) - target), p)
            for p in range(begin + 1, end)
            if abs(int(cuts.weight[p]) - target) <= reach
        ]
        if near:
            chosen.append(min(near)[2])
    return sorted(set(chosen))


def grids(evaluator: Evaluator) -> Iterator[Labels]:
    """Labellings that keep k cuts, with j temporary cuts between any two of them."""
    problem = evaluator.problem
    cuts = cuts_of(problem)
    free = ~evaluator.decided
    for level_one in _LEVEL_ONE:
        if level_one >= problem.op_count:
            break
        kept = spread(cuts, 0, problem.op_count, level_one)
        base = evaluator.labels(Label.DROP)
        for position in kept:
            for storage in cuts.crossing[position]:
                if free[storage]:
                    base[storage] = Label.KEEP
        for level_two in _LEVEL_TWO:
            labels = base.copy()
            for begin, end in zip([0, *kept], [*kept, problem.op_count], strict=True):
                for position in spread(cuts, begin, end, level_two):
                    for storage in cuts.crossing[position]:
                        if free[storage] and labels[storage] == Label.DROP:
                            labels[storage] = Label.TEMPORARY
            yield labels
