"""Labellings from the kept sets of the parametric cut: the sets themselves, and mixtures of two neighbours.

A kept set fits the first backward; what its recomputations hold later may not fit. So the cut is asked under smaller
budgets of its own, bisected towards the largest whose kept set the evaluator finds within the real one. Between
that set and the next larger one lies a step of one breakpoint, which on repeated layers is a whole class of
tensors in every layer; mixtures take the larger set for the first or the last ops only.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..evaluation.evaluator import Evaluation, Evaluator, Labels
from ..evaluation.labels import Label
from .parametric_min_cut import KeptSet, MinCut

Ranks = NDArray[np.int64] | NDArray[np.float64]
Offer = Callable[[Labels], Evaluation]
"""Evaluates a labelling and may remember it, as Search.offer does."""

_STEPS = 12
"""Halvings of the cut's own budget, down to a 4,096th of what lies between floor and budget."""
_TRIES = 150
"""Labellings that one mixture may evaluate."""


def labels_of(evaluator: Evaluator, kept: KeptSet) -> Labels:
    """Keep the set, drop the rest; what the user or the caller decided stays."""
    labels = evaluator.labels(Label.DROP)
    labels[kept.kept & ~evaluator.decided] = Label.KEEP
    return labels


def mixture(small: Labels, large: Labels, rank: Ranks, budget_nbytes: int, offer: Offer) -> Labels:
    """``small`` with what fits of ``large``, storage by storage in the order of ``rank``, in growing strides.

    A stride that fits doubles, one that does not halves; a single storage that does not fit is passed over.
    """
    differ = np.flatnonzero(small != large)
    differ = differ[np.argsort(rank[differ], kind="stable")]
    labels: Labels = small.copy()
    at, stride = 0, max(1, len(differ) // 2)
    for _ in range(_TRIES):
        if at >= len(differ):
            break
        chosen = differ[at : at + stride]
        labels[chosen] = large[chosen]
        if offer(labels).peak_nbytes <= budget_nbytes:
            at, stride = at + stride, 2 * stride
        else:
            labels[chosen] = small[chosen]
            at, stride = (at, stride // 2) if stride > 1 else (at + 1, 1)
    return labels


def round_cut(cut: MinCut, evaluator: Evaluator, budget_nbytes: int, offer: Offer) -> Labels | None:
    """Offer roundings of the cut; returns the labels of the largest kept set found within the budget, if any."""
    floor = evaluator.problem.floor_nbytes
    small: Labels | None = None
    large: Labels | None = None
    low, high = -1, 1 << _STEPS
    middle = high
    while high - low > 1:
        within, above = (labels_of(evaluator, kept) for kept in cut.bracket(
            floor + (budget_nbytes - floor) * middle // (1 << _STEPS)
        ))  # fmt: skip
        if offer(within).peak_nbytes <= budget_nbytes:
            small, low = within, middle
            if offer(above).peak_nbytes > budget_nbytes:
                large = above
            if middle == high:
                break
        else:
            large, high = within, middle
        middle = (low + high) // 2
    if small is None or large is None:
        return small
    made = evaluator.problem.producer
    mixed = [mixture(small, large, order, budget_nbytes, offer) for order in (made, -made)]
    best = min(mixed, key=lambda labels: evaluator.evaluate(labels).recompute_ns)
    worth = evaluator.arrays.forward_ns[made] / np.maximum(evaluator.arrays.nbytes, 1)
    mixture(best, evaluator.labels(Label.KEEP), -worth, budget_nbytes, offer)
    return best
