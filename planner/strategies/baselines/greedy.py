"""Greedy: drop what frees the most bytes per nanosecond of recomputation, until the budget holds.

The rule is the one most planners have as a baseline or as their heuristic; what is ours is that every
candidate is measured: the bytes are the fall of the simulated peak, the time is what the evaluator
says the change really adds, chains of dropped producers included. Steps:

1. From keep-all (what no backward reads counts as dropped: nothing keeps it), measure the _WIDTH most
   promising storages alive at the peak and drop the best. A drop that only moves an equal peak to a
   later backward counts when none lowers it.
2. When no drop helps, the peak sits in a recomputation: measure every change of label, temporary
   checkpoints included, of the _NEAR storages made just before the peak, then every drop at the peak.
3. Within the budget, keep again whatever still fits, most time saved first.

With more than _FULL_WIDTH_GROUPS groups, greedy_batched.py descends first and keeps again at the end, because
simulating every candidate takes minutes there; what it leaves above the budget goes through steps 1 and 2.

Storages move in groups; here a group is one storage, in per_layer.py all storages of one class. Work is
bounded by counts, never by the clock. No optimality is claimed, nor infeasibility when it gets stuck.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...limits import NO_LIMITS, Limits
from ...problem import Problem
from ...solution import Solution
from ..evaluation.evaluator import Array, Arrays, Evaluator, Labels, Scratch, evaluate
from ..evaluation.labels import Label
from ..kernels.jit import compiled
from ..kernels.sorting import sort_descending
from .articulation import saved
from .greedy_batched import descend_in_batches, keep_in_strides, put

NAME = "greedy"
_WIDTH = 16
_NEAR = 32
_SWEEPS = 64
"""How often step 2 may be taken."""
_FULL_WIDTH_GROUPS = 700
"""With more groups than this, fewer candidates are measured a time, in proportion."""
_MEASURING_WORK = 10_000_000
"""Measurements times ops of steps 1 and 2, a second or two; only graphs of thousands of tensors reach it."""
_NEGLIGIBLE = 1000
"""Step 2 passes over groups smaller than the peak divided by this."""


class Groups(NamedTuple):
    """What is known of each group, and room to order them."""

    nbytes: Array
    first_op: Array
    latest: Array
    """The groups, those that are made last first."""
    added: Array
    """The time that dropping each adds, its producers' until it is measured."""
    score: NDArray[np.float64]
    changes: Array
    order: Array
    spare: Array

    @classmethod
    def of(cls, a: Arrays, start: Array, members: Array, near: int) -> Groups:
        """Of the storages ``members``, with room for three changes of each of ``near`` groups."""
        count, producer, first = len(start) - 1, a.producer[members], start[:-1]
        repeats = np.r_[False, producer[1:] == producer[:-1]]
        repeats[first] = False
        first_op = np.minimum.reduceat(producer, first)
        room = (np.zeros(size, dtype=np.int64) for size in (max(count, 3 * near), count, count))
        return cls(
            np.add.reduceat(a.nbytes[members], first),
            first_op,
            np.argsort(-first_op, kind="stable"),
            np.add.reduceat(np.where(repeats, 0, a.forward_ns[producer]), first),
            np.zeros(count),
            *room,
        )


@compiled
def _best_change(
    a: Arrays, w: Scratch, labels: Labels, start: Array, members: Array, g: Groups, count: int, budget: int
) -> int:
    """The one of the first ``count`` of the changes that lowers the peak most per ns of added time; -1 when none does.

    A change is 3 * group + new label. ``g.added`` remembers the time that each measured drop adds. A fall
    below the budget counts for nothing. When no change lowers the peak, a drop that leaves it equal
    but later in the backward is taken.
    """
    peak, recompute, _, position = evaluate(a, labels, w)
    best, best_score, lowers = -1, 0.0, False
    for place in range(count):
        change = g.changes[place]
        group, label = change // 3, change % 3
        old = labels[members[start[group]]]
        if label == old:
            continue
        put(labels, start, members, group, label)
        new_peak, new_time, _, new_position = evaluate(a, labels, w)
        put(labels, start, members, group, old)
        extra = new_time - recompute
        if old == 1 and label == 0:
            g.added[group] = max(0, extra)
        fall = float(min(peak - new_peak, peak - budget))
        moves = new_peak == peak and new_position > position and old == 1
        if fall <= 0.0 and (lowers or not moves):
            continue
        size = 0
        for q in range(start[group], start[group + 1]):
            size += a.nbytes[members[q]]
        gain = fall if fall > 0.0 else float(size)
        # A change that also saves time beats every change that costs some.
        score = gain / (extra + 1.0) if extra >= 0 else gain * (1.0 - extra)
        if best < 0 or score > best_score or (fall > 0.0 and not lowers):
            best, best_score, lowers = change, score, fall > 0.0
    return best


@compiled
def _descend(
    a: Arrays,
    w: Scratch,
    labels: Labels,
    start: Array,
    members: Array,
    g: Groups,
    budget: int,
    width: int,
    near: int,
    sweeps: int,
    measurements: int,
) -> int:
    """Steps 1 and 2 on ``labels`` in place, in about this many ``measurements``; returns the peak reached."""
    groups = len(start) - 1
    peak, _, event, position = evaluate(a, labels, w)
    while peak > budget and measurements > 0:
        found = 0
        for group in range(groups):
            g.score[group] = 0.0
            if labels[members[start[group]]] == 1:
                for q in range(start[group], start[group + 1]):
                    storage = members[q]
                    if a.producer[storage] <= event and w.last[storage] >= event:
                        g.score[group] += a.nbytes[storage] / (g.added[group] + 1.0)
            if g.score[group] > 0.0:
                found += 1
        sort_descending(g.score, g.order, g.spare)
        for place in range(found):
            g.changes[place] = 3 * g.order[place]
        measurements -= 1 + min(found, width)
        best = _best_change(a, w, labels, start, members, g, min(found, width), budget)
        if best < 0 and sweeps > 0:
            sweeps -= 1
            current = a.order[position] if position >= 0 else event
            last = 0
            for group in g.latest:
                if last < near and g.nbytes[group] * _NEGLIGIBLE > peak and g.first_op[group] <= current:
                    g.changes[last] = 3 * group
                    last += 1
            for place in range(last):
                g.changes[last + place] = g.changes[place] + 1
                g.changes[2 * last + place] = g.changes[place] + 2
            measurements -= 3 * last
            best = _best_change(a, w, labels, start, members, g, 3 * last, budget)
            if best < 0:
                sweeps -= 7  # a longer measurement, counted as such
                found = min(found, max(0, measurements))
                measurements -= found
                for place in range(found):
                    g.changes[place] = 3 * g.order[place]
                best = _best_change(a, w, labels, start, members, g, found, budget)
        if best < 0:
            break
        put(labels, start, members, best // 3, best % 3)
        peak, _, event, position = evaluate(a, labels, w)
    return int(peak)


@compiled
def _keep_again(a: Arrays, w: Scratch, labels: Labels, start: Array, members: Array, g: Groups, limit: int) -> None:
    """Step 3 on ``labels`` in place: keep dropped groups while the peak stays within ``limit``."""
    _, recompute, _, _ = evaluate(a, labels, w)
    for group in range(len(start) - 1):
        g.score[group] = 0.0
        old = labels[members[start[group]]]
        if old != 1:
            put(labels, start, members, group, 1)
            new_peak, new_time, _, _ = evaluate(a, labels, w)
            put(labels, start, members, group, old)
            if new_peak <= limit:
                g.score[group] = float(recompute - new_time)
    sort_descending(g.score, g.order, g.spare)
    for _ in range(3):
        changed = False
        for group in g.order:
            old = labels[members[start[group]]]
            if g.score[group] <= 0.0 or old == 1:
                continue
            put(labels, start, members, group, 1)
            new_peak, new_time, _, _ = evaluate(a, labels, w)
            if new_peak <= limit and new_time < recompute:
                recompute = new_time
                changed = True
            else:
                put(labels, start, members, group, old)
        if not changed:
            break


def descend(evaluator: Evaluator, groups: Sequence[Sequence[int]], budget_nbytes: int | None) -> Labels:
    """Labels found by moving whole groups of storages; None minimises the peak as far as this goes.

    ``groups`` are disjoint and hold no decided storage. The peak may be above the budget.
    """
    labels = evaluator.labels(Label.KEEP)
    read = saved(evaluator.problem.graph)
    for group in groups:
        if read.isdisjoint(group):  # alive to the backward only if a recomputation wants it
            labels[group] = Label.DROP
    if not groups:
        return labels
    start = np.cumsum([0, *(len(group) for group in groups)]).astype(np.int64)
    members = np.array([storage for group in groups for storage in group], dtype=np.int64)
    arrays, scratch = evaluator.arrays, evaluator.scratch
    budget = 0 if budget_nbytes is None else budget_nbytes
    share = min(1.0, _FULL_WIDTH_GROUPS / len(groups))
    width, near = max(4, int(_WIDTH * share)), max(8, int(_NEAR * share))
    most = max(1, _MEASURING_WORK // len(arrays.forward_ns))
    if share < 1.0:
        descend_in_batches(arrays, scratch, labels, start, members, budget, -(-len(groups) // _FULL_WIDTH_GROUPS))
    known = Groups.of(arrays, start, members, near)
    peak = _descend(arrays, scratch, labels, start, members, known, budget, width, near, _SWEEPS, most)
    if share < 1.0:
        keep_in_strides(arrays, scratch, labels, start, members, max(peak, budget), min(len(groups), most))
    else:
        _keep_again(arrays, scratch, labels, start, members, known, max(peak, budget))
    return labels


def singles(evaluator: Evaluator) -> list[list[int]]:
    """Every undecided storage for itself."""
    return [[storage] for storage in np.flatnonzero(~evaluator.decided).tolist()]


def labels(evaluator: Evaluator, budget_nbytes: int | None = None) -> Labels:
    """The labels of the greedy plan; the peak is above the budget when it got stuck."""
    return descend(evaluator, singles(evaluator), budget_nbytes)


def solve(
    problem: Problem,
    budget_nbytes: int | None = None,
    *,
    limits: Limits = NO_LIMITS,
    seed: int = 0,
) -> Solution:
    """A plan within the budget, or UNKNOWN with the smallest peak reached when greedy gets stuck."""
    evaluator = Evaluator(problem)
    return evaluator.solution(labels(evaluator, budget_nbytes), budget_nbytes, NAME)
