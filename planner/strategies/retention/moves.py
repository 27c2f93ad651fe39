"""The moves of retention annealing.

Some moves flip one use of a value: retain it since its last use instead of recomputing it, or the reverse. They aim at
groups with many recomputations and at the peak. Other moves set stretches and whole rows of neighbouring storages, or
of equal storages in repeated layers, make a cut a checkpoint, or compute something early.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.bitset import bit_of
from ..kernels.jit import compiled, inlined
from ..kernels.xorshift import uniform
from .recompute_groups import flip_early, set_wishes
from .state import EARLY, PEAK_AT, RetentionArrays, RetentionState

Random = NDArray[np.uint64]


@compiled
def _last_touch(h: RetentionArrays, st: RetentionState, s: int, g: int) -> int:
    """The last group before g that reads or computes ``s``, -1 for the forward."""
    op = h.producer[s]
    for word in range((g - 1) >> 6, -1, -1):
        touched = st.used[s, word] | st.ran[op, word]
        if touched == np.uint64(0):
            continue
        for at in range(min(g - 1, word * 64 + 63), word * 64 - 1, -1):
            if touched & bit_of(at):
                return at
    return -1


@compiled
def _hold(h: RetentionArrays, st: RetentionState, g: int, op: int) -> None:
    """Hold what group g computes again with ``op`` since its last touch."""
    for q in range(h.writes_start[op], h.writes_start[op + 1]):
        s = h.writes[q]
        if st.used[s, g >> 6] & bit_of(g):
            set_wishes(h, st, s, _last_touch(h, st, s, g) + 1, g, True)


@compiled
def _drop(h: RetentionArrays, st: RetentionState, g: int, s: int, wide: bool) -> None:
    """Stop holding ``s`` across boundary g, or across all boundaries since its last touch."""
    set_wishes(h, st, s, _last_touch(h, st, s, g) + 1 if wide else g, g, False)


@compiled
def _held_at(h: RetentionArrays, st: RetentionState, g: int, state: Random) -> int:
    """A movable storage held across boundary g, -1 when none was met."""
    for _ in range(24):
        s = h.movable[int(uniform(state) * len(h.movable))]
        if st.held[s, g >> 6] & bit_of(g):
            return s  # type: ignore[no-any-return]
    return -1


@compiled
def _group_with_runs(st: RetentionState, state: Random) -> int:
    """A group that runs something again, the longer one of two met; -1 when none was met."""
    found = -1
    for _ in range(12):
        g = int(uniform(state) * len(st.counts))
        if st.counts[g] > 0:
            if found >= 0:
                return g if st.counts[g] > st.counts[found] else found
            found = g
    return found


@inlined
def move(h: RetentionArrays, st: RetentionState, near: int, state: Random) -> int:
    """Make one random change; returns the position it was about."""
    positions, movable = len(h.order), len(h.movable)
    kind = uniform(state)
    g = near
    if kind < 0.25:  # touches
        if g < 0:
            g = _group_with_runs(st, state)
        hold = kind < 0.1 or kind >= 0.2
        if hold and g >= 0 and st.counts[g] > 0:
            op = st.runs[g, int(uniform(state) * st.counts[g])]
            place = len(h.forward_ns) - 1 - op
            if st.early[g, place >> 6] & bit_of(place):
                flip_early(h, st, g, op)
            else:
                _hold(h, st, g, op)
        if kind >= 0.1:
            if not hold or g < 0:
                g = st.totals[PEAK_AT] if uniform(state) < 0.4 else int(uniform(state) * positions)
            s = _held_at(h, st, g, state) if g >= 0 else -1
            if s >= 0:
                _drop(h, st, g, s, uniform(state) < 0.5)
        return g
    at = int(uniform(state) * movable)
    s = h.movable[at]
    if kind < 0.7:  # a stretch of one storage or of neighbours
        length = h.last[s] + 1
        first = int(uniform(state) * length)
        last = first + int(uniform(state) * uniform(state) * (length - first))
        width = 1 + int(uniform(state) * 4) if uniform(state) < 0.4 else 1
        value = st.wish[s, first >> 6] & bit_of(first) == np.uint64(0)
        for near_by in range(at, min(movable, at + width)):
            set_wishes(h, st, h.movable[near_by], first, last, value)
        return first
    if kind < 0.94:  # whole rows
        how = int(uniform(state) * 3)
        width = 1 + int(uniform(state) * 6) if uniform(state) < 0.5 else 1
        group = h.class_of[at]
        begin, end = h.class_start[group], h.class_start[group + 1]
        start = begin + int(uniform(state) * (end - begin))
        alike = uniform(state) < 0.5
        for step in range(width):
            if alike and start + step < end:
                row = h.movable[h.members[start + step]]
            elif not alike and at + step < movable:
                row = h.movable[at + step]
            else:
                break
            set_wishes(h, st, row, 0, positions, how > 0)
            if how == 2:
                set_wishes(h, st, row, 0, 0, False)
        return g
    if kind < 0.99:  # a cut as a checkpoint up to its own backward
        op = int(uniform(state) * len(h.forward_ns))
        last = min(positions - 1, h.own[op])
        first = int(uniform(state) * (last + 1))
        value = uniform(state) < 0.6
        for q in range(h.cut_start[op], h.cut_start[op + 1]):
            set_wishes(h, st, h.cuts[q], first, last if value else first, value)
        return first
    g = int(uniform(state) * positions)
    op = h.producer[s]
    if h.own[op] > g and st.totals[EARLY] < 8:
        flip_early(h, st, g, op)
        set_wishes(h, st, s, g + 1, min(positions - 1, g + 1 + int(uniform(state) * (h.own[op] - g))), True)
    return g
