"""Simulated annealing on labels that lowers the peak, with the exact evaluator as its objective.

The idea of annealing rematerialisation decisions is FastSA's (Li et al., arXiv 2024); ours moves the
labels of labels.py instead of a sequence, so every state is a legal schedule. Work is bounded by an
iteration count and a private xorshift generator, never by the clock: same input, same labels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..evaluation.evaluator import Arrays, Evaluation, Evaluator, Labels, Scratch, evaluate
from ..kernels.jit import compiled, copy_part, sum_of
from ..kernels.xorshift import stream, uniform

Array = NDArray[np.int64]


@compiled
def _mutate(
    labels: Labels,
    movable: Array,
    members: Array,
    class_start: Array,
    class_of: Array,
    levels: int,
    state: NDArray[np.uint64],
) -> None:
    """One random move: flip, swap near neighbours, set or shift a window, set a range of one class, go temporary."""
    count = len(movable)
    kind = uniform(state)
    at = int(uniform(state) * count)
    if levels > 1 and uniform(state) < 0.25:
        storage = movable[at]
        if labels[storage] == 2:
            labels[storage] = int(uniform(state) * 2)
            if uniform(state) < 0.5:  # move the second-level checkpoint instead of removing it
                near = min(count - 1, max(0, at + int(uniform(state) * 17) - 8))
                labels[movable[near]] = 2
        else:
            labels[storage] = 2
    elif kind < 0.45:
        labels[movable[at]] = 0 if labels[movable[at]] == 1 else 1
    elif kind < 0.75:
        width = 1 + int(uniform(state) * 20)
        near = min(count - 1, max(0, at + int(uniform(state) * (2 * width + 1)) - width))
        first, second = movable[at], movable[near]
        if labels[first] == labels[second]:
            labels[first] = 0 if labels[first] == 1 else 1
        else:
            labels[first], labels[second] = labels[second], labels[first]
    elif kind < 0.85:
        group = class_of[at]
        begin, end = class_start[group], class_start[group + 1]
        start = begin + int(uniform(state) * (end - begin))
        length = 1 + int(uniform(state) * 8)
        value = 1 if uniform(state) < 0.5 else 0
        for q in range(start, min(end, start + length)):
            labels[movable[members[q]]] = value
    elif kind < 0.95:
        width = 2 + int(uniform(state) * 12)
        last = min(count, at + width)
        how = int(uniform(state) * 3)
        if how < 2:
            for q in range(at, last):
                labels[movable[q]] = how
        else:
            for q in range(at, last - 1):
                labels[movable[q]] = labels[movable[q + 1]]
    else:
        for _ in range(3):
            storage = movable[int(uniform(state) * count)]
            labels[storage] = 0 if labels[storage] == 1 else 1


@compiled
def _anneal(
    a: Arrays,
    w: Scratch,
    labels: Labels,
    movable: Array,
    members: Array,
    class_start: Array,
    class_of: Array,
    scale: int,
    levels: int,
    first: int,
    last: int,
    total: int,
    heat: float,
    state: NDArray[np.uint64],
    current: Labels,
    candidate: Labels,
) -> None:
    """Run iterations first..last of total; ``labels`` holds the best labelling and is replaced by better ones.

    ``scale`` is the peak of one in bytes, ``candidate`` is room for another one.
    """
    whole = max(1.0, float(sum_of(a.forward_ns)))
    best = evaluate(a, labels, w)
    best_peak, best_time = best[0], best[1]
    found = evaluate(a, current, w)
    peak, time = found[0], found[1]
    for iteration in range(first, last):
        temperature = heat * 1e-3 ** (iteration / total)
        copy_part(candidate, 0, current, 0, len(current))
        _mutate(candidate, movable, members, class_start, class_of, levels, state)
        found = evaluate(a, candidate, w)
        now = peak / scale + 0.002 * time / whole
        new = found[0] / scale + 0.002 * found[1] / whole
        if new <= now or uniform(state) < np.exp((now - new) / temperature):
            copy_part(current, 0, candidate, 0, len(current))
            peak, time = found[0], found[1]
            if peak < best_peak or (peak == best_peak and time < best_time):
                copy_part(labels, 0, current, 0, len(current))
                best_peak, best_time = peak, time


class LabelAnnealer:
    """Annealing over one problem. Classes group movable storages of equal op type and size, in op order."""

    def __init__(self, evaluator: Evaluator, seed: int) -> None:
        self.evaluator = evaluator
        problem = evaluator.problem
        useful = ~evaluator.decided
        self.movable: Array = np.flatnonzero(useful).astype(np.int64)
        groups: dict[tuple[str, int, int], list[int]] = {}
        for index, storage in enumerate(self.movable.tolist()):
            op = problem.graph.ops[int(problem.producer[storage])]
            key = (op.op_type, int(problem.nbytes[storage]), op.writes.index(storage))
            groups.setdefault(key, []).append(index)
        self.class_of: Array = np.zeros(len(self.movable), dtype=np.int64)
        for number, group in enumerate(groups.values()):
            self.class_of[group] = number
        self.members: Array = np.array([i for group in groups.values() for i in group], dtype=np.int64)
        self.class_start: Array = np.cumsum([0, *(len(group) for group in groups.values())]).astype(np.int64)
        self.state = stream(seed)

    def run(
        self,
        labels: Labels,
        iterations: int,
        *,
        heat: float,
        levels: int = 1,
        stop: Callable[[Labels], bool] | None = None,
    ) -> tuple[Labels, Evaluation]:
        """The labelling of the smallest peak found from ``labels``, and of those the quickest.

        ``stop`` is asked between slices of the work and may end it early.
        """
        best, current, candidate = labels.copy(), labels.copy(), labels.copy()
        if len(self.movable) and iterations > 0:
            scale, slices = max(1, self.evaluator.evaluate(labels).peak_nbytes), 8
            for part in range(slices):
                first, last = iterations * part // slices, iterations * (part + 1) // slices
                _anneal(
                    self.evaluator.arrays, self.evaluator.scratch, best, self.movable, self.members, self.class_start,
                    self.class_of, scale, levels, first, last, iterations, heat, self.state, current, candidate,
                )  # fmt: skip
                if stop is not None and stop(best):
                    break
        return best, self.evaluator.evaluate(best)
