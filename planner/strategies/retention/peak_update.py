"""From groups of recomputations to lifetimes and the peak, compiled and incremental; and the undoing of a change.

A change costs what it touches: the groups whose ops differ, and the boundaries where a lifetime starts or ends.
Nothing is copied; a journal in the state undoes a change that is turned down.
"""

from __future__ import annotations

import numpy as np

from ..kernels.bitset import bit_of, lowest_bit
from ..kernels.jit import compiled, inlined
from .recompute_groups import move_random, use_group
from .state import (
    ABOVES,
    AFFECTED,
    AVAILS,
    EARLIES,
    EARLY,
    EVENTS,
    FORWARD_PEAK,
    GROUPS,
    LIVE_STAMP,
    PEAK,
    PEAK_AT,
    RANDOMS,
    STAMP,
    TIME,
    WAS_FORWARD,
    WISHES,
    RetentionArrays,
    RetentionState,
)

_ONE = np.uint64(1)
_ZERO = np.uint64(0)


@inlined
def _update_held(h: RetentionArrays, st: RetentionState, row: int) -> None:
    """Recompute the boundaries across which a storage lives: those whose next touch is a read of the old value."""
    s = st.affected[row]
    op, size = h.producer[s], h.nbytes[s]
    later, ending = _ZERO, _ZERO
    for word in range(st.held.shape[1] - 1, -1, -1):
        touched = st.used[s, word] | st.ran[op, word]
        seed = st.used[s, word] & ~st.ran[op, word]
        room = ~touched
        seed |= room & (later << np.uint64(63))
        for shift in (1, 2, 4, 8, 16, 32):
            seed |= room & (seed >> np.uint64(shift))
            room &= room >> np.uint64(shift)
        later = seed & _ONE
        old = st.held[s, word]
        st.held_old[row, word] = old
        st.held[s, word] = seed
        _shift_level(st, word, old, seed, size)
        # What lives on after a group that touches it changes the moments inside that group.
        st.dirty_above[word] |= (((old ^ seed) >> _ONE) | (ending << np.uint64(63))) & touched
        ending = (old ^ seed) & _ONE
    if size != 0 and (st.held[s, 0] ^ st.held_old[row, 0]) & _ONE:
        _shift_forward(h, st, s, size if st.held[s, 0] & _ONE else -size)


@compiled
def _shift_level(st: RetentionState, word: int, old: int, new: int, size: int) -> None:
    changed = old ^ new if size != 0 else _ZERO
    while changed != _ZERO:
        lowest = lowest_bit(changed)
        changed &= changed - _ONE
        g = word * 64 + lowest
        st.level[g] += size if (new >> np.uint64(lowest)) & _ONE else -size


@compiled
def _shift_forward(h: RetentionArrays, st: RetentionState, s: int, size: int) -> None:
    for event in range(h.forward_end[s] + 1, len(st.forward)):
        st.forward[event] += size


@inlined
def _above(h: RetentionArrays, st: RetentionState, g: int) -> int:
    """The most group g holds beyond the boundary before it, from its backward upwards."""
    st.totals[LIVE_STAMP] += 1
    stamp = st.totals[LIVE_STAMP]
    word, bit = (g + 1) >> 6, bit_of(g + 1)
    inside = g + 1 < len(h.order)
    now = 0
    for q in range(h.needs_start[g], h.needs_start[g + 1]):
        s = h.needs[q]
        if st.stamp_live[s] != stamp and not (inside and st.held[s, word] & bit):
            st.stamp_live[s] = stamp
            now += h.nbytes[s]
    most = now + h.during[g]
    for at in range(st.counts[g]):
        op = st.runs[g, at]
        during, before = now + h.doubled_nbytes[op], now
        for q in range(h.writes_start[op], h.writes_start[op + 1]):
            s = h.writes[q]
            if st.stamp_live[s] == stamp:
                st.stamp_live[s] = 0
                before -= h.nbytes[s]
            elif inside and st.held[s, word] & bit:
                before -= h.nbytes[s]
            else:
                during += h.nbytes[s]  # written for nobody
        for q in range(h.reads_start[op], h.reads_start[op + 1]):
            s = h.reads[q]
            if st.stamp_live[s] != stamp and not (inside and st.held[s, word] & bit):
                st.stamp_live[s] = stamp
                before += h.nbytes[s]
                during += h.nbytes[s]
        if h.random_state[op] > 0 and st.last_recompute[op] == g:
            before += h.random_state[op]
            during += h.random_state[op]
        most = max(most, during + h.between[g] + h.workspace[op])
        now = before
    return most - now  # type: ignore[no-any-return]


@inlined
def settle(h: RetentionArrays, st: RetentionState) -> None:
    """Bring lifetimes and the peak up to date after `propagate`."""
    st.totals[WAS_FORWARD] = st.totals[FORWARD_PEAK]
    for row in range(st.totals[AFFECTED]):
        _update_held(h, st, row)
    for word in range(len(st.dirty_above)):
        while st.dirty_above[word] != _ZERO:
            lowest = lowest_bit(st.dirty_above[word])
            st.dirty_above[word] &= st.dirty_above[word] - _ONE
            g = word * 64 + lowest
            row = st.totals[ABOVES]
            st.above_rows[row] = g
            st.above_old[row] = st.above[g]
            st.totals[ABOVES] = row + 1
            st.above[g] = _above(h, st, g)
    peak, at = 0, -1
    for event in range(len(st.forward)):
        peak = max(peak, st.forward[event])
    st.totals[FORWARD_PEAK] = peak
    for g in range(len(st.level)):
        held = st.level[g] + st.above[g]
        if held > peak:
            peak, at = held, g
    st.totals[PEAK], st.totals[PEAK_AT] = peak, at


@inlined
def keep(st: RetentionState) -> None:
    """Keep the change: forget the journal."""
    for entry in range(WISHES, RANDOMS + 1):
        st.totals[entry] = 0
    st.totals[STAMP] += 1


@inlined
def undo(h: RetentionArrays, st: RetentionState, settled: bool) -> None:
    """Take the change back; ``settled`` says whether `settle` had run since."""
    words = st.wish.shape[1]
    for row in range(st.totals[ABOVES]):
        st.above[st.above_rows[row]] = st.above_old[row]
    if settled:
        for row in range(st.totals[AFFECTED]):
            s, size = st.affected[row], h.nbytes[st.affected[row]]
            if size != 0 and (st.held[s, 0] ^ st.held_old[row, 0]) & _ONE:
                _shift_forward(h, st, s, -size if st.held[s, 0] & _ONE else size)
            for word in range(words):
                _shift_level(st, word, st.held[s, word], st.held_old[row, word], size)
                st.held[s, word] = st.held_old[row, word]
    for row in range(st.totals[GROUPS] - 1, -1, -1):
        g = st.groups[row]
        for at in range(st.counts[g]):
            st.totals[TIME] -= h.forward_ns[st.runs[g, at]]
        st.totals[EVENTS] -= st.counts[g]
        use_group(h, st, g, False)
        st.counts[g] = st.groups_old[row, 0]
        for at in range(st.counts[g]):
            st.runs[g, at] = st.groups_old[row, 1 + at]
            st.totals[TIME] += h.forward_ns[st.runs[g, at]]
        st.totals[EVENTS] += st.counts[g]
        use_group(h, st, g, True)
    for row in range(st.totals[RANDOMS] - 2, -2, -2):
        move_random(h, st, st.random_rows[row], st.random_rows[row + 1])
    for row in range(st.totals[AVAILS]):
        for word in range(words):
            st.avail[st.avail_rows[row], word] = st.avail_old[row, word]
    for row in range(st.totals[WISHES] - 1, -1, -1):
        for word in range(words):
            st.wish[st.wish_rows[row], word] = st.wish_old[row, word]
    for row in range(0, st.totals[EARLIES], 2):
        g, at = st.early_rows[row], st.early_rows[row + 1]
        st.totals[EARLY] += -1 if st.early[g, at >> 6] & bit_of(at) else 1
        st.early[g, at >> 6] ^= bit_of(at)
    for word in range(len(st.dirty)):
        st.dirty[word] = _ZERO
        st.dirty_above[word] = _ZERO
    if settled:
        st.totals[FORWARD_PEAK] = st.totals[WAS_FORWARD]
    keep(st)
