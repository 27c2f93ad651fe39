"""From an order of computations to a retention matrix, and back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.bitset import bit_of, lowest_bit
from ..kernels.jit import compiled, inlined
from .peak_update import keep, settle
from .recompute_groups import collect, replace_group, set_wishes, update_avail
from .state import AFFECTED, EARLY, EVENTS, LIMIT, RANDOMS, STAMP, WISHES, RetentionArrays, RetentionState

_ALL = np.uint64(2**64 - 1)
_ZERO = np.uint64(0)


@compiled
def load(
    h: RetentionArrays, st: RetentionState, sequence: NDArray[np.int64], end: int, wanted: NDArray[np.bool_]
) -> bool:
    """Take the wishes of a legal order of computations into a new state; False when it is too long.

    ``end``: how many computations there are up to the last first run; ``wanted``: room, one entry per storage.
    Recomputations that nobody uses are left out, those between first runs too, and the rest of a group is put in order.
    """
    ops, positions = len(h.forward_ns), len(h.order)
    for s in range(len(wanted)):
        wanted[s] = False
        if h.fixed[s]:
            for word in range(st.wish.shape[1]):
                st.wish[s, word] = _ALL
    g = positions
    for event in range(len(sequence) - 1, end - 2, -1):
        entry = sequence[event]
        if entry < 0 or event == end - 1:
            for s in range(len(wanted)):
                if wanted[s] and g < positions:
                    set_wishes(h, st, s, g, g, True)
            st.totals[WISHES] = 0
            if event == end - 1:
                break
            g -= 1
            for q in range(h.needs_start[g], h.needs_start[g + 1]):
                wanted[h.needs[q]] = True
            continue
        useful = False
        for q in range(h.writes_start[entry], h.writes_start[entry + 1]):
            useful |= wanted[h.writes[q]]
            wanted[h.writes[q]] = False
        if useful:
            at = ops - 1 - entry
            st.early[g, at >> 6] |= bit_of(at)
            for q in range(h.reads_start[entry], h.reads_start[entry + 1]):
                wanted[h.reads[q]] = True
    return build(h, st)


@inlined
def _adds(h: RetentionArrays, st: RetentionState, op: int, g: int) -> bool:
    """Whether a run of ``op`` in group g makes something that is not there and is to be held after the group."""
    if g + 1 == len(h.order):
        return False
    for q in range(h.writes_start[op], h.writes_start[op + 1]):
        s = h.writes[q]
        there = st.avail[s, g >> 6] & bit_of(g)
        wished = st.wish[s, (g + 1) >> 6] & bit_of(g + 1)
        if there == _ZERO and wished != _ZERO:
            return True
    return False


@compiled
def build(h: RetentionArrays, st: RetentionState) -> bool:
    """Replay the wishes of a new state; of the runs asked for early only those remain that hold something more.

    False when the plan is too long for the state.
    """
    for s in range(len(h.nbytes)):
        update_avail(h, st, s, -1)
        st.stamp_held[s] = st.totals[STAMP]
        st.affected[s] = s
    st.totals[AFFECTED] = len(h.nbytes)
    for g in range(len(h.order)):
        st.dirty_above[g >> 6] |= bit_of(g)
    for g in range(len(h.order)):
        asked = 0
        for v in range(len(st.mark)):
            st.mark[v] = _ZERO
        st.totals[EARLY] = 0
        count = collect(h, st, g)
        for at in range(count):
            place = len(h.forward_ns) - 1 - st.found[at]
            st.early[g, place >> 6] &= ~bit_of(place)
        for v in range(len(st.mark)):
            word = st.early[g, v]
            while word != _ZERO:
                lowest = lowest_bit(word)
                word &= word - np.uint64(1)
                if _adds(h, st, len(h.forward_ns) - 1 - (v * 64 + lowest), g):
                    asked = 1
                else:
                    st.early[g, v] &= ~bit_of(lowest)
        st.totals[EARLY] = asked
        if asked:
            count = collect(h, st, g)
        if count > st.runs.shape[1] or st.totals[EVENTS] + count > st.totals[LIMIT]:
            return False
        replace_group(h, st, g, count)
        st.totals[RANDOMS] = 0  # nothing of this will be undone
    st.totals[EARLY] = 0
    for g in range(len(h.order)):
        for v in range(len(st.mark)):
            word = st.early[g, v]
            while word != _ZERO:
                word &= word - np.uint64(1)
                st.totals[EARLY] += 1
    for word in range(len(st.dirty)):
        st.dirty[word] = _ZERO
    settle(h, st)
    keep(st)
    return True


@compiled
def store(h: RetentionArrays, st: RetentionState, sequence: NDArray[np.int64]) -> int:
    """Write the plan as an order of computations; returns its length."""
    count = len(h.forward_ns)
    for op in range(count):
        sequence[op] = op
    for g in range(len(h.order)):
        for at in range(st.counts[g] - 1, -1, -1):
            sequence[count] = st.runs[g, at]
            count += 1
        sequence[count] = ~h.order[g]
        count += 1
    return count
