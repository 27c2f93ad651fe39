"""Cuts of the forward order into a chain of blocks, and what crosses every cut.

A cut stands before an op; its boundary is the set of storages made before it and used at or after it, by a
forward or by a backward. With the boundary at hand the rest of the step can run, so a step is a chain of
blocks whatever its graph looks like (the set-valued boundaries are what long skips and parallel branches need).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..evaluation.evaluator import Array, Evaluator
from ..evaluation.op_colours import colours


@dataclass(frozen=True)
class Crossing:
    """Lifetimes over the forward order, for n ops and S storages.

    last_use[s] (shape [S]): the last op whose forward or backward uses s; fixed[s]: s is held from its first run to
    its last use in every plan (empty, held by the caller, kept on request or not to be made again);
    nbytes[p] and weight[p] (shape [n + 1]): bytes of free storages that cross position p, and the same with what no
    backward reads counted twice; allowed[p]: the backward order serves the ops from p on before those below
    p, and nothing crosses p that the user wants recomputed.
    """

    last_use: Array
    fixed: NDArray[np.bool_]
    nbytes: Array
    weight: Array
    allowed: NDArray[np.bool_]


def crossing_of(evaluator: Evaluator) -> Crossing:
    """What crosses each position of the forward order, in time linear in the graph."""
    a, problem = evaluator.arrays, evaluator.problem
    n = len(a.forward_ns)
    last_use = a.producer.copy()
    np.maximum.at(last_use, a.reads, np.repeat(np.arange(n), np.diff(a.reads_start)))
    np.maximum.at(last_use, a.needs, np.repeat(a.order, np.diff(a.needs_start)))
    fixed = a.pinned | (a.nbytes == 0)
    fixed[list(problem.keep)] = True
    saved = np.zeros(len(a.nbytes), dtype=np.bool_)
    saved[a.needs] = True
    free = ~fixed
    nbytes = _crossing(a.producer[free], last_use[free], a.nbytes[free], n)
    weight = nbytes + _crossing(a.producer[free & ~saved], last_use[free & ~saved], a.nbytes[free & ~saved], n)
    position = np.full(n + 1, -1, dtype=np.int64)
    position[a.order] = np.arange(len(a.order))
    latest = np.maximum.accumulate(position[::-1])[::-1]
    allowed: NDArray[np.bool_] = latest + 1 == np.cumsum((position >= 0)[::-1])[::-1]
    unwanted = np.zeros(len(a.nbytes), dtype=np.bool_)
    unwanted[list(problem.recompute)] = True
    unwanted &= free
    allowed &= _crossing(a.producer[unwanted], last_use[unwanted], a.nbytes[unwanted], n) == 0
    return Crossing(last_use, fixed, nbytes, weight, allowed)


def _crossing(made: Array, last: Array, nbytes: Array, n: int) -> Array:
    change = np.zeros(n + 2, dtype=np.int64)
    np.add.at(change, made + 1, nbytes)
    np.add.at(change, last + 1, -nbytes)
    return np.cumsum(change)[: n + 1]


def nested_positions(evaluator: Evaluator, crossing: Crossing, spacings: Sequence[int]) -> list[Array]:
    """One set of cuts per spacing (in ops, coarsest first), each containing the one before.

    Every set has 0 and n at its ends and otherwise cuts at least its spacing apart, narrowest first (shape
    [L + 1], increasing). Equal widths are taken in the order of the local structure around them, so that repeated
    layers are cut at the same places.
    """
    n = evaluator.problem.op_count
    colour = np.array([*colours(evaluator.problem), -1], dtype=np.int64)
    inner = np.flatnonzero(crossing.allowed[:n])
    inner = inner[inner > 0]
    ranked = inner[np.lexsort((inner, colour[inner], colour[inner - 1], crossing.weight[inner]))].tolist()
    chosen = {0, n}
    nested = []
    for spacing in spacings:
        taken = np.zeros(n + 1, dtype=np.bool_)
        for position in (*sorted(chosen), *ranked):
            if position in chosen or not taken[position]:
                chosen.add(position)
                taken[max(0, position - spacing + 1) : position + spacing] = True
        nested.append(np.array(sorted(chosen), dtype=np.int64))
    return nested
