"""The inner loop of every search: labels -> peak and recomputation time, compiled with numba.

Builds the same order of computations as labels.decisions_of, turns lifetimes into a difference array
over events and takes the running maximum. It is never the judge: every plan is replayed by simulate.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...problem import Problem
from ...solution import Decisions, Solution, Status
from ..kernels.jit import compiled
from .labels import Label

Array = NDArray[np.int64]
Labels = NDArray[np.int8]
_DENSE = 8
"""Among recomputations no farther from each other on average, looking at all ops between takes less than sorting."""


class Arrays(NamedTuple):
    """A Problem as flat arrays: CSR lists of reads, writes and backward reads, then one entry per op or storage."""

    reads_start: Array
    reads: Array
    writes_start: Array
    writes: Array
    needs_start: Array
    needs: Array
    order: Array
    nbytes: Array
    producer: Array
    pinned: NDArray[np.bool_]
    forward_ns: Array
    workspace: Array
    random_state: Array
    during: Array
    between: Array
    base: int


class Scratch(NamedTuple):
    """Reused working memory of one evaluation."""

    events: Array
    memory: Array
    start: Array
    last: Array
    ran_at: Array
    until: Array
    next_temporary: Array
    stack: Array
    first_run: Array
    last_run: Array


class Evaluation(NamedTuple):
    """Peak bytes, recomputation ns, the event of the peak and its backward position (-1 in the forward)."""

    peak_nbytes: int
    recompute_ns: int
    peak_event: int
    peak_position: int


def csr(lists: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """Where each list begins (shape [lists + 1]), and all lists one after the other."""
    start = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum([len(entry) for entry in lists], out=start[1:])
    flat = np.array([value for entry in lists for value in entry], dtype=np.int64)
    return start, flat


def arrays_of(problem: Problem) -> Arrays:
    """The problem flattened for the compiled kernels."""
    graph = problem.graph
    needs = []
    for op in problem.backward_order:
        backward = graph.ops[op].backward
        assert backward is not None
        needs.append(backward.reads)
    pinned = np.zeros(len(graph.storages), dtype=np.bool_)
    pinned[list(problem.pinned)] = True
    return Arrays(
        *csr([op.reads for op in graph.ops]),
        *csr([op.writes for op in graph.ops]),
        *csr(needs),
        np.array(problem.backward_order, dtype=np.int64),
        problem.nbytes,
        problem.producer,
        pinned,
        problem.forward_ns,
        np.array([cost.forward_workspace_nbytes for cost in problem.costs], dtype=np.int64),
        np.array([op.random_state_nbytes for op in graph.ops], dtype=np.int64),
        problem.during_nbytes,
        problem.between_nbytes,
        problem.base_nbytes,
    )


def scratch_of(arrays: Arrays, events: int = 0) -> Scratch:
    """Working memory large enough for any labelling of the problem, and for ``events`` computations."""
    ops, storages, backwards = len(arrays.forward_ns), len(arrays.nbytes), len(arrays.order)
    limit = max(events, 3 * ops + backwards) + 1  # a labelling runs an op in the forward and at most twice more
    return Scratch(
        np.zeros(limit, dtype=np.int64),
        np.zeros(limit + 1, dtype=np.int64),
        np.zeros(storages, dtype=np.int64),
        np.zeros(storages, dtype=np.int64),
        np.zeros(ops, dtype=np.int64),
        np.zeros(ops, dtype=np.int64),
        np.zeros(ops, dtype=np.int64),
        np.zeros(len(arrays.reads) + len(arrays.needs) + storages + 1, dtype=np.int64),
        np.zeros(ops, dtype=np.int64),
        np.zeros(ops, dtype=np.int64),
    )


@compiled
def sort_part(values: Array, begin: int, end: int) -> None:
    """Sort ``values[begin:end]`` where they are (Shell 1959, with the strides of Knuth, TAOCP 3, 5.2.1)."""
    stride = 1
    while 3 * stride + 1 < end - begin:
        stride = 3 * stride + 1
    while stride > 0:
        for at in range(begin + stride, end):
            value, hole = values[at], at
            while hole >= begin + stride and values[hole - stride] > value:
                values[hole] = values[hole - stride]
                hole -= stride
            values[hole] = value
        stride //= 3


@compiled
def events_of(a: Arrays, labels: Labels, w: Scratch) -> tuple[int, int]:
    """Fill ``w.events`` with the computations (i forward, ~i backward); returns (count, recompute_ns)."""
    ops = len(a.forward_ns)
    upcoming = ops
    for op in range(ops - 1, -1, -1):
        w.next_temporary[op] = upcoming
        for q in range(a.writes_start[op], a.writes_start[op + 1]):
            storage = a.writes[q]
            if labels[storage] == 2 and not a.pinned[storage]:
                upcoming = op
    for op in range(ops):
        w.events[op] = op
        w.ran_at[op] = -1
        w.until[op] = ops
    count = ops
    recompute = 0
    for position in range(len(a.order)):
        current = a.order[position]
        begin, first, last = count, ops, -1
        top = 0
        for q in range(a.needs_start[position], a.needs_start[position + 1]):
            storage = a.needs[q]
            if labels[storage] != 1 and not a.pinned[storage]:
                w.stack[top] = storage
                top += 1
        while top > 0:
            top -= 1
            op = a.producer[w.stack[top]]
            if w.ran_at[op] == position or w.until[op] < current:
                continue
            w.ran_at[op] = position
            w.until[op] = w.next_temporary[op] if w.next_temporary[op] < current else -1
            for q in range(a.writes_start[op], a.writes_start[op + 1]):
                storage = a.writes[q]
                if labels[storage] == 2 and not a.pinned[storage]:
                    w.until[op] = -1
            w.events[count] = op
            count += 1
            first, last = min(first, op), max(last, op)
            recompute += a.forward_ns[op]
            for q in range(a.reads_start[op], a.reads_start[op + 1]):
                storage = a.reads[q]
                if labels[storage] != 1 and not a.pinned[storage]:
                    w.stack[top] = storage
                    top += 1
        if last - first < _DENSE * (count - begin):
            at = begin
            for op in range(first, last + 1):
                if w.ran_at[op] == position:
                    w.events[at] = op
                    at += 1
        else:
            sort_part(w.events, begin, count)
        w.events[count] = ~current
        count += 1
    return count, recompute


@compiled
def evaluate(a: Arrays, labels: Labels, w: Scratch) -> tuple[int, int, int, int]:
    """(peak_nbytes, recompute_ns, peak_event, peak_position) of a labelling."""
    count, recompute = events_of(a, labels, w)
    peak, peak_event, peak_position = peak_of_events(a, count, w)
    return peak, recompute, peak_event, peak_position


@compiled
def peak_of_events(a: Arrays, count: int, w: Scratch) -> tuple[int, int, int]:
    """(peak_nbytes, peak_event, peak_position) of the first ``count`` computations of ``w.events``.

    Any legal order: recomputations may stand between first runs. ``w.memory`` then has the bytes in use during each.
    """
    ops = len(a.forward_ns)
    for event in range(count + 1):
        w.memory[event] = 0
    for storage in range(len(a.nbytes)):
        w.start[storage] = -1
    for op in range(ops):
        w.first_run[op] = -1
        w.last_run[op] = -1
    position, seeded = 0, 0  # the caller hands in its gradients after the last first run
    for event in range(count):
        entry = w.events[event]
        if entry >= 0:
            if w.first_run[entry] >= 0:
                w.last_run[entry] = event
            else:
                w.first_run[entry] = event
                seeded = event + 1
            for q in range(a.reads_start[entry], a.reads_start[entry + 1]):
                w.last[a.reads[q]] = event
            for q in range(a.writes_start[entry], a.writes_start[entry + 1]):
                storage = a.writes[q]
                if w.start[storage] >= 0:
                    if a.pinned[storage]:  # the caller holds the old one; the copy goes at the end of this run
                        w.memory[event] += a.nbytes[storage]
                        w.memory[event + 1] -= a.nbytes[storage]
                        continue
                    w.memory[w.start[storage]] += a.nbytes[storage]
                    w.memory[w.last[storage] + 1] -= a.nbytes[storage]
                w.start[storage] = event
                w.last[storage] = event
        else:
            for q in range(a.needs_start[position], a.needs_start[position + 1]):
                w.last[a.needs[q]] = event
            position += 1
    for storage in range(len(a.nbytes)):
        if w.start[storage] >= 0:
            w.memory[w.start[storage]] += a.nbytes[storage]
            if not a.pinned[storage]:
                w.memory[w.last[storage] + 1] -= a.nbytes[storage]
    for op in range(ops):
        if a.random_state[op] > 0 and w.last_run[op] >= 0:
            w.memory[w.first_run[op]] += a.random_state[op]
            w.memory[w.last_run[op] + 1] -= a.random_state[op]
    peak, peak_event, peak_position = 0, 0, -1
    running, position = 0, 0
    for event in range(count):
        running += w.memory[event]
        entry = w.events[event]
        if entry < 0:
            held = running + a.during[position]
        elif event < seeded:
            held = running + a.base + a.workspace[entry]
        else:
            held = running + a.between[position] + a.workspace[entry]
        w.memory[event] = held
        if held > peak:
            peak, peak_event = held, event
            peak_position = position if event >= seeded else -1
        if entry < 0:
            position += 1
    return peak, peak_event, peak_position


class Evaluator:
    """A problem ready for repeated evaluation."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.arrays = arrays_of(problem)
        self.scratch = scratch_of(self.arrays)

    def fork(self) -> Evaluator:
        """An evaluator of the same problem for another thread."""
        other = copy(self)
        other.scratch = scratch_of(self.arrays)
        return other

    def evaluate(self, labels: Labels) -> Evaluation:
        """Peak and recomputation time of a labelling."""
        return Evaluation(*(int(value) for value in evaluate(self.arrays, labels, self.scratch)))

    def evaluate_sequence(self, sequence: Array) -> Evaluation:
        """Peak and recomputation time of a legal order of computations (as in Decisions)."""
        if len(sequence) >= len(self.scratch.events):
            self.scratch = scratch_of(self.arrays, 2 * len(sequence))
        self.scratch.events[: len(sequence)] = sequence
        peak, event, position = (int(value) for value in peak_of_events(self.arrays, len(sequence), self.scratch))
        runs = sequence[sequence >= 0]
        recompute = int(self.arrays.forward_ns[runs].sum() - self.arrays.forward_ns.sum())
        return Evaluation(peak, recompute, event, position)

    def in_use(self, sequence: Array) -> Array:
        """Bytes in use during each computation of a legal order; shape [computations]."""
        self.evaluate_sequence(sequence)
        used: Array = self.scratch.memory[: len(sequence)].copy()
        return used

    def labels(self, fill: int) -> Labels:
        """A labelling with one label everywhere, except where the user or the caller decided otherwise."""
        labels = np.full(len(self.arrays.nbytes), fill, dtype=np.int8)
        labels[self.arrays.pinned | (self.arrays.nbytes == 0)] = Label.KEEP
        labels[list(self.problem.recompute)] = Label.DROP
        labels[list(self.problem.keep)] = Label.KEEP
        return labels

    @property
    def decided(self) -> NDArray[np.bool_]:
        """Storages whose label no search may change: empty, held by the caller, or chosen by the user."""
        decided: NDArray[np.bool_] = self.arrays.pinned | (self.arrays.nbytes == 0)
        decided[list(self.problem.keep | self.problem.recompute)] = True
        return decided

    def solution(self, labels: Labels, budget_nbytes: int | None, strategy: str) -> Solution:
        """What a labelling amounts to, as `solution_of`."""
        found = self.evaluate(labels)
        sequence = np.array(self.decisions(labels).sequence, dtype=np.int64)
        return solution_of(sequence, found, budget_nbytes, strategy)

    def decisions(self, labels: Labels) -> Decisions:
        """The order of computations of a labelling."""
        count, _ = events_of(self.arrays, labels, self.scratch)
        return Decisions(tuple(int(value) for value in self.scratch.events[:count]))


def solution_of(
    sequence: Array, found: Evaluation, budget_nbytes: int | None, strategy: str, notes: tuple[str, ...] = ()
) -> Solution:
    """What a plan amounts to: FEASIBLE within the budget (OPTIMAL if it recomputes nothing), else UNKNOWN."""
    if budget_nbytes is not None and found.peak_nbytes > budget_nbytes:
        return Solution(Status.UNKNOWN, strategy, None, smallest_nbytes=found.peak_nbytes, notes=notes)
    return Solution(
        Status.OPTIMAL if found.recompute_ns == 0 else Status.FEASIBLE,
        strategy,
        Decisions(tuple(sequence.tolist())),
        objective_ns=found.recompute_ns,
        peak_nbytes=found.peak_nbytes,
        smallest_nbytes=found.peak_nbytes,
        notes=notes,
    )
