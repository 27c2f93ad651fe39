"""From the retention matrix to groups of recomputations, compiled and incremental.

A change of the matrix, or of an op computed early, marks the affected groups; `propagate` walks them in execution
order, because what a group computes decides what later groups find alive.
"""

from __future__ import annotations

import numpy as np

from ..kernels.bitset import bit_of, lowest_bit
from ..kernels.jit import compiled, inlined
from .state import (
    AFFECTED,
    AVAILS,
    EARLIES,
    EARLY,
    EVENTS,
    GROUPS,
    LIMIT,
    OVERFULL,
    RANDOMS,
    STAMP,
    TIME,
    WISHES,
    RetentionArrays,
    RetentionState,
)

_ONE = np.uint64(1)
_ZERO = np.uint64(0)
_ALL = np.uint64(2**64 - 1)


@inlined
def update_avail(h: RetentionArrays, st: RetentionState, s: int, after: int) -> None:
    """Recompute where ``s`` is alive at the start of a group; groups after ``after`` that feel it become dirty."""
    words = st.avail.shape[1]
    op = h.producer[s]
    if st.stamp_avail[s] != st.totals[STAMP]:
        st.stamp_avail[s] = st.totals[STAMP]
        row = st.totals[AVAILS]
        st.avail_rows[row] = s
        for word in range(words):
            st.avail_old[row, word] = st.avail[s, word]
        st.totals[AVAILS] = row + 1
    carry = _ONE  # the forward computes it
    for word in range(words):
        wish, ran = st.wish[s, word], st.ran[op, word]
        start = ((ran << _ONE) | carry) & wish
        alive = (((wish + start) ^ wish) & wish) | start
        changed = (alive ^ st.avail[s, word]) & (st.used[s, word] | ran)
        st.avail[s, word] = alive
        carry = (alive | ran) >> np.uint64(63)
        if changed != _ZERO:
            if word == after >> 6:
                changed &= (_ALL << np.uint64(after & 63)) ^ bit_of(after)
            elif word < after >> 6:
                continue
            st.dirty[word] |= changed


@compiled
def set_wishes(h: RetentionArrays, st: RetentionState, s: int, first: int, last: int, value: bool) -> None:
    """Wish (or not) to hold ``s`` across boundaries first..last, as far as it may be changed."""
    first, last = max(first, h.first[s]), min(last, h.last[s])
    if first > last:
        return
    changed = False
    for word in range(first >> 6, (last >> 6) + 1):
        mask = _ALL
        if word == first >> 6:
            mask &= _ALL << np.uint64(first & 63)
        if word == last >> 6:
            mask &= _ALL >> np.uint64(63 - (last & 63))
        old = st.wish[s, word]
        new = old | mask if value else old & ~mask
        if new != old:
            if not changed:
                changed = True
                row = st.totals[WISHES]
                if row == len(st.wish_rows):
                    return
                st.wish_rows[row] = s
                for every in range(st.wish.shape[1]):
                    st.wish_old[row, every] = st.wish[s, every]
                st.totals[WISHES] = row + 1
            st.wish[s, word] = new
    if changed:
        update_avail(h, st, s, -1)


@compiled
def flip_early(h: RetentionArrays, st: RetentionState, g: int, op: int) -> None:
    """Run ``op`` in group g even where nothing asks for it, or no longer."""
    row = st.totals[EARLIES]
    if row + 2 > len(st.early_rows):
        return
    at = len(h.forward_ns) - 1 - op
    st.early_rows[row] = g
    st.early_rows[row + 1] = at
    st.totals[EARLIES] = row + 2
    bit = bit_of(at)
    st.totals[EARLY] += -1 if st.early[g, at >> 6] & bit else 1
    st.early[g, at >> 6] ^= bit
    st.dirty[g >> 6] |= bit_of(g)


@inlined
def _affect(h: RetentionArrays, st: RetentionState, op: int) -> None:
    """Note the storages whose lifetimes change with a run of ``op``."""
    stamp = st.totals[STAMP]
    for side in range(2):
        start = h.reads_start if side == 0 else h.writes_start
        listed = h.reads if side == 0 else h.writes
        for q in range(start[op], start[op + 1]):
            s = listed[q]
            if st.stamp_held[s] != stamp:
                st.stamp_held[s] = stamp
                st.affected[st.totals[AFFECTED]] = s
                st.totals[AFFECTED] += 1


@inlined
def collect(h: RetentionArrays, st: RetentionState, g: int) -> int:
    """Fill ``st.found`` with the ops that must run again before backward g, last first; returns how many."""
    ops, op_words = len(h.forward_ns), len(st.mark)
    word, bit = g >> 6, bit_of(g)
    low = op_words
    if st.totals[EARLY] > 0:
        for v in range(op_words):
            st.mark[v] = st.early[g, v]
        low = 0
    for q in range(h.needs_start[g], h.needs_start[g + 1]):
        s = h.needs[q]
        if st.avail[s, word] & bit == _ZERO:
            at = ops - 1 - h.producer[s]
            st.mark[at >> 6] |= bit_of(at)
            low = min(low, at >> 6)
    count = 0
    for v in range(low, op_words):
        while st.mark[v] != _ZERO:
            lowest = lowest_bit(st.mark[v])
            st.mark[v] &= st.mark[v] - _ONE
            op = ops - 1 - (v * 64 + lowest)
            st.found[count] = op
            count += 1
            for q in range(h.reads_start[op], h.reads_start[op + 1]):
                s = h.reads[q]
                if st.avail[s, word] & bit == _ZERO:
                    at = ops - 1 - h.producer[s]
                    st.mark[at >> 6] |= bit_of(at)
    return count


@inlined
def use_group(h: RetentionArrays, st: RetentionState, g: int, value: bool) -> None:
    """Set or clear the rows ``ran`` and ``used`` of group g according to its ops and its backward."""
    word, bit = g >> 6, bit_of(g)
    for at in range(st.counts[g]):
        op = st.runs[g, at]
        if value:
            st.ran[op, word] |= bit
        else:
            st.ran[op, word] &= ~bit
        for q in range(h.reads_start[op], h.reads_start[op + 1]):
            if value:
                st.used[h.reads[q], word] |= bit
            else:
                st.used[h.reads[q], word] &= ~bit
    if value:
        for q in range(h.needs_start[g], h.needs_start[g + 1]):
            st.used[h.needs[q], word] |= bit


@inlined
def replace_group(h: RetentionArrays, st: RetentionState, g: int, count: int) -> None:
    """Make ``st.found`` the ops of group g; journal the old ones and update what follows from each difference."""
    row = st.totals[GROUPS]
    old_count = st.counts[g]
    st.groups[row] = g
    st.groups_old[row, 0] = old_count
    for at in range(old_count):
        st.groups_old[row, 1 + at] = st.runs[g, at]
    st.totals[GROUPS] = row + 1
    use_group(h, st, g, False)
    for at in range(count):
        st.runs[g, at] = st.found[at]
    st.counts[g] = count
    use_group(h, st, g, True)
    st.dirty_above[g >> 6] |= bit_of(g)
    old, new = 0, 0
    while old < old_count or new < count:
        before = st.groups_old[row, 1 + old] if old < old_count else -1
        after = st.runs[g, new] if new < count else -1
        if before == after:
            old += 1
            new += 1
            continue
        op = max(before, after)
        gone = op == before
        old += 1 if gone else 0
        new += 0 if gone else 1
        st.totals[TIME] += -h.forward_ns[op] if gone else h.forward_ns[op]
        st.totals[EVENTS] += -1 if gone else 1
        _affect(h, st, op)
        for q in range(h.writes_start[op], h.writes_start[op + 1]):
            update_avail(h, st, h.writes[q], g)
        if h.random_state[op] > 0:
            _update_random(h, st, op)


@inlined
def _update_random(h: RetentionArrays, st: RetentionState, op: int) -> None:
    """A generator state is held from the first run of its op to the last: move the end of that."""
    last = -1
    for word in range(st.ran.shape[1] - 1, -1, -1):
        runs = st.ran[op, word]
        if runs != _ZERO:
            last = word * 64 + 63
            while runs & bit_of(last) == _ZERO:
                last -= 1
            break
    row = st.totals[RANDOMS]
    if row + 2 > len(st.random_rows):
        st.totals[OVERFULL] = 1
        return
    st.random_rows[row] = op
    st.random_rows[row + 1] = st.last_recompute[op]
    st.totals[RANDOMS] = row + 2
    move_random(h, st, op, last)


@compiled
def move_random(h: RetentionArrays, st: RetentionState, op: int, last: int) -> None:
    """Hold the generator state of ``op`` up to its recomputation in group ``last``, -1 for not at all."""
    old = st.last_recompute[op]
    st.last_recompute[op] = last
    size = h.random_state[op]
    for g in range(min(old, last) + 1, max(old, last) + 1):
        st.level[g] += size if last > old else -size
    if (old < 0) != (last < 0):
        for event in range(op, len(st.forward)):
            st.forward[event] += size if old < 0 else -size
    for g in (old, last):
        if g >= 0:
            st.dirty_above[g >> 6] |= bit_of(g)


@inlined
def propagate(h: RetentionArrays, st: RetentionState) -> bool:
    """Bring the groups of recomputations up to date, earliest first; False when the plan grew too long (then undo)."""
    for word in range(len(st.dirty)):
        while st.dirty[word] != _ZERO:
            lowest = lowest_bit(st.dirty[word])
            st.dirty[word] &= st.dirty[word] - _ONE
            g = word * 64 + lowest
            count = collect(h, st, g)
            same = count == st.counts[g]
            if same:
                for at in range(count):
                    if st.found[at] != st.runs[g, at]:
                        same = False
                        break
            if same:
                continue
            if count > st.runs.shape[1] or st.totals[EVENTS] + count - st.counts[g] > st.totals[LIMIT]:
                for rest in range(len(st.dirty)):
                    st.dirty[rest] = _ZERO
                return False
            replace_group(h, st, g, count)
    return st.totals[OVERFULL] == 0  # type: ignore[no-any-return]
