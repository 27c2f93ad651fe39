"""Greedy on graphs of thousands of tensors: several drops between two simulations, and strides to keep again.

greedy.py simulates every candidate, which is one simulation of the whole step for each of several candidates of
each drop. Here the time that a drop adds is found exactly without one: as long as nothing is a temporary checkpoint
every op is recomputed at most once, so it is the time of the ops that have to be recomputed from then on, a walk over
dropped ancestors. The fall of the peak is taken to be the bytes held at it; after a batch the step is simulated,
and a batch that brings less than half of that is taken back and halved.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..evaluation.evaluator import Array, Arrays, Labels, Scratch, evaluate
from ..kernels.jit import allocating, compiled
from ..kernels.sorting import descending

Flags = NDArray[np.bool_]


@compiled
def put(labels: Labels, start: Array, members: Array, group: int, label: int) -> None:
    """Give every storage of a group one label."""
    for q in range(start[group], start[group + 1]):
        labels[members[q]] = label


@compiled
def added_ns(
    a: Arrays, labels: Labels, start: Array, members: Array, group: int, again: Flags, readers: Array, stack: Array,
    commit: bool,
) -> int:  # fmt: skip
    """Time of the ops that join ``again``, those that are recomputed, when a group is dropped.

    ``readers`` counts for each storage its backwards and the ops of ``again`` that read it. ``labels`` must have
    the group dropped; ``commit`` leaves ``again`` and ``readers`` as they are then.
    """
    count = 0  # stack[:count] are the ops found, those before ``at`` have been expanded
    for q in range(start[group], start[group + 1]):
        op = a.producer[members[q]]
        if readers[members[q]] > 0 and not a.pinned[members[q]] and not again[op]:
            again[op] = True
            stack[count] = op
            count += 1
    time, at = 0, 0
    while at < count:
        op = stack[at]
        at += 1
        time += a.forward_ns[op]
        for q in range(a.reads_start[op], a.reads_start[op + 1]):
            storage = a.reads[q]
            if commit:
                readers[storage] += 1
            before = a.producer[storage]
            if labels[storage] != 1 and not a.pinned[storage] and not again[before]:
                again[before] = True
                stack[count] = before
                count += 1
    if not commit:
        for q in range(count):
            again[stack[q]] = False
    return time


@allocating
def descend_in_batches(
    a: Arrays, w: Scratch, labels: Labels, start: Array, members: Array, budget: int, batch: int
) -> None:
    """Drop groups on ``labels`` in place, ``batch`` between two simulations, until within budget or batches fail."""
    groups, ops = len(start) - 1, len(a.forward_ns)
    again, readers = np.zeros(ops, dtype=np.bool_), np.zeros(len(a.nbytes), dtype=np.int64)
    for storage in a.needs:
        readers[storage] += 1
    stack = np.zeros(ops, dtype=np.int64)
    held, score = np.zeros(groups, dtype=np.int64), np.zeros(groups, dtype=np.float64)
    peak, _, event, _ = evaluate(a, labels, w)
    while peak > budget and batch > 0:
        found = 0
        for group in range(groups):
            held[group], score[group] = 0, 0.0
            if labels[members[start[group]]] != 1:
                continue
            for q in range(start[group], start[group + 1]):
                storage = members[q]
                if w.start[storage] <= event and w.last[storage] >= event:
                    held[group] += a.nbytes[storage]
            if held[group] > 0:
                put(labels, start, members, group, 0)
                extra = added_ns(a, labels, start, members, group, again, readers, stack, False)
                put(labels, start, members, group, 1)
                score[group] = held[group] / (extra + 1.0)
                found += 1
        order = descending(score)
        was_again, had_readers = again.copy(), readers.copy()
        fall, taken = 0, 0
        while taken < min(batch, found) and fall < peak - budget:
            group = order[taken]
            put(labels, start, members, group, 0)
            added_ns(a, labels, start, members, group, again, readers, stack, True)
            fall += held[group]
            taken += 1
        new_peak, _, new_event, _ = evaluate(a, labels, w)
        if taken > 0 and 2 * (peak - new_peak) >= min(fall, peak - budget):
            peak, event = new_peak, new_event
            continue
        for q in range(taken):
            put(labels, start, members, order[q], 1)
        again, readers = was_again, had_readers
        batch = batch // 2 if taken > 0 else 0
        evaluate(a, labels, w)


@allocating
def keep_in_strides(
    a: Arrays, w: Scratch, labels: Labels, start: Array, members: Array, limit: int, tries: int
) -> None:
    """Keep dropped groups again on ``labels`` in place, longest time first, while the peak stays within ``limit``.

    A stride that fits and saves time doubles, one that does not halves, a group that does not is passed over.
    """
    groups = len(start) - 1
    time = np.zeros(groups, dtype=np.int64)
    for group in range(groups):
        previous = -1
        for q in range(start[group], start[group + 1]):
            if labels[members[q]] != 1 and a.producer[members[q]] != previous:
                previous = a.producer[members[q]]
                time[group] += a.forward_ns[previous]
    order = descending(time)
    order = order[: np.sum(time > 0)]
    _, recompute, _, _ = evaluate(a, labels, w)
    at, stride = 0, max(1, len(order) // 2)
    before = np.zeros(len(order), dtype=np.int64)
    while at < len(order) and tries > 0:
        tries -= 1
        stop = min(len(order), at + stride)
        for q in range(at, stop):
            before[q] = labels[members[start[order[q]]]]
            put(labels, start, members, order[q], 1)
        new_peak, new_time, _, _ = evaluate(a, labels, w)
        if new_peak <= limit and new_time < recompute:
            recompute, at, stride = new_time, stop, 2 * stride
            continue
        for q in range(at, stop):
            put(labels, start, members, order[q], before[q])
        if stride == 1:
            at += 1
        else:
            stride //= 2
