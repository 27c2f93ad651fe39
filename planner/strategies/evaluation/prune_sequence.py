"""Two ways to shorten a sequence of computations: drop unused recomputations, and retain instead of recomputing.

Both keep the sequence legal. A recomputation goes when all it makes is either unused before it is made again, or can
be held from its last computation on because the budget has room for it all the time between.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.jit import allocating
from .evaluator import Array, Arrays, Evaluator, Scratch, peak_of_events

_PASSES = 8


@allocating
def _useful(a: Arrays, fixed: NDArray[np.bool_], events: Array, count: int) -> int:
    """Compact ``events`` to first runs, backwards and the recomputations that something uses; returns the new count."""
    first = np.full(len(a.forward_ns), -1, dtype=np.int64)
    for event in range(count - 1, -1, -1):
        if events[event] >= 0:
            first[events[event]] = event
    wanted = np.zeros(len(a.nbytes), dtype=np.bool_)
    position, kept = len(a.order), count
    for event in range(count - 1, -1, -1):
        entry = events[event]
        if entry < 0:
            position -= 1
            for q in range(a.needs_start[position], a.needs_start[position + 1]):
                wanted[a.needs[q]] = True
        else:
            used = first[entry] == event
            for q in range(a.writes_start[entry], a.writes_start[entry + 1]):
                used |= wanted[a.writes[q]] and not fixed[a.writes[q]]
            if not used:
                continue
            for q in range(a.writes_start[entry], a.writes_start[entry + 1]):
                wanted[a.writes[q]] = False
            for q in range(a.reads_start[entry], a.reads_start[entry + 1]):
                wanted[a.reads[q]] = True
        kept -= 1
        events[kept] = entry
    for event in range(count - kept):
        events[event] = events[kept + event]
    return count - kept


@allocating
def _hold(a: Arrays, fixed: NDArray[np.bool_], barred: NDArray[np.bool_], count: int, budget: int, w: Scratch) -> int:
    """Remove from ``w.events`` recomputations whose outputs fit between their computations; returns the new count.

    Removals are tried in order of time saved per byte and event held; what a removed recomputation no longer reads
    stays counted until the next pass, so the peak stays within the budget.
    """
    peak_of_events(a, count, w)
    ops = len(a.forward_ns)
    held = w.memory[:count].copy()
    # where the copy that each recomputation replaces was used last, for each of its outputs
    made = np.full(len(a.nbytes), -1, dtype=np.int64)
    used = np.full(len(a.nbytes), -1, dtype=np.int64)
    since = np.full(count, count, dtype=np.int64)  # the first event at which nothing of the last copy is held
    gain = np.zeros(count)
    position = 0
    for event in range(count):
        entry = w.events[event]
        if entry < 0:
            for q in range(a.needs_start[position], a.needs_start[position + 1]):
                used[a.needs[q]] = event
            position += 1
            continue
        for q in range(a.reads_start[entry], a.reads_start[entry + 1]):
            used[a.reads[q]] = event
        volume = 1.0
        possible = False
        for q in range(a.writes_start[entry], a.writes_start[entry + 1]):
            s = a.writes[q]
            if made[s] >= 0:
                possible = True
                since[event] = min(since[event], used[s] + 1)
                volume += float(a.nbytes[s]) * (event - used[s])
            made[s] = event
            used[s] = event
        for q in range(a.writes_start[entry], a.writes_start[entry + 1]):
            if barred[a.writes[q]]:
                possible = False
        if possible:
            gain[event] = a.forward_ns[entry] / volume
    removed = np.zeros(count, dtype=np.bool_)
    touched = np.zeros(ops, dtype=np.int64) - 1
    for event in np.argsort(-gain):
        if gain[event] <= 0.0:
            break
        entry = w.events[event]
        if touched[entry] >= 0:  # its copies have moved: the next pass sees them as they are
            continue
        size = 0
        for q in range(a.writes_start[entry], a.writes_start[entry + 1]):
            if not fixed[a.writes[q]]:
                size += a.nbytes[a.writes[q]]
        fits = True
        for between in range(since[event], event):
            if held[between] + size > budget:
                fits = False
                break
        if fits:
            for between in range(since[event], event):
                held[between] += size
            removed[event] = True
            touched[entry] = event
    kept = 0
    for event in range(count):
        if not removed[event]:
            w.events[kept] = w.events[event]
            kept += 1
    return kept


def prune(evaluator: Evaluator, fixed: NDArray[np.bool_], sequence: Array) -> Array:
    """``sequence`` without the recomputations that nothing uses; ``fixed`` ones are never made again for themselves."""
    events = sequence.copy()
    count = int(_useful(evaluator.arrays, fixed, events, len(events)))
    kept: Array = events[:count]
    return kept


def hold(evaluator: Evaluator, fixed: NDArray[np.bool_], sequence: Array, budget_nbytes: int) -> Array:
    """``sequence`` with fewer recomputations and a peak still within the budget, if it was."""
    barred = np.zeros(len(evaluator.arrays.nbytes), dtype=np.bool_)
    barred[list(evaluator.problem.recompute)] = True
    barred &= ~fixed
    for _ in range(_PASSES):
        evaluator.evaluate_sequence(sequence)  # makes room in the scratch
        w = evaluator.scratch
        w.events[: len(sequence)] = sequence
        count = int(_hold(evaluator.arrays, fixed, barred, len(sequence), budget_nbytes, w))
        if count == len(sequence):
            break
        sequence = prune(evaluator, fixed, w.events[:count])
    return sequence
