"""Plans that may compute a value any number of times: which storages are retained across which backward steps.

Checkmate (Jain et al., MLSys 2020) decides for every value and every stage whether it is kept alive and whether it
is computed. With the backward order fixed, one bit per storage and backward position is enough: ``wish[s, g]`` says
"if s is alive, retain it across the boundary before the g-th backward". Before each backward the missing ops are
recomputed in forward order; after it everything not wished for is freed. ``early[g, i]`` adds the rare run of an op
before its value is needed. Every matrix is a legal plan, and every sequence has a matrix (`conversion.load`).

Positions are bits of 64-bit words, so that lifetimes of one storage over a whole step are a few instructions.
Ops are numbered from the last (bit n-1-i) where a group of recomputations is collected, readers before producers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...problem import Problem
from ..evaluation.evaluator import Evaluator, csr
from ..relaxation.stage_relaxation import StageRelaxation

Array = NDArray[np.int64]
Words = NDArray[np.uint64]

_MOST_RUNS = 2**25
"""Entries of the table of recomputations (positions times capacity), which bounds its memory."""


class RetentionArrays(NamedTuple):
    """What of a Problem matters to retention. Lists (CSR) name only storages that cost bytes to retain.

    ``first``/``last``: the boundaries that a wish for a storage may cover (last < first: none may change);
    ``fixed``: storages that are always wished for. ``doubled_nbytes``: outputs of an op that the caller holds, of
    which a recomputation makes a copy for a moment. ``forward_end``: the last op of the forward that touches a storage.
    ``own``: position of the first backward of an op or of one before it. ``cuts``: per op, what is read after it.
    """

    reads_start: Array
    reads: Array
    writes_start: Array
    writes: Array
    needs_start: Array
    needs: Array
    cut_start: Array
    cuts: Array
    order: Array
    producer: Array
    nbytes: Array
    forward_ns: Array
    workspace: Array
    random_state: Array
    doubled_nbytes: Array
    during: Array
    between: Array
    forward_end: Array
    first: Array
    last: Array
    fixed: NDArray[np.bool_]
    own: Array
    movable: Array
    members: Array
    class_start: Array
    class_of: Array


class RetentionState(NamedTuple):
    """A plan under change: wishes, what follows from them, and the journal that undoes the last change.

    Rows of words over positions: ``avail[s]`` alive when the group starts and wished for; ``used[s]`` read in the
    group; ``ran[i]`` op i runs again; ``held[s]`` alive at the boundary and read before it is next computed.
    ``runs[g, :counts[g]]`` are the ops of a group, last first. ``level[g]`` bytes at the boundary before g,
    ``above[g]`` the most a group holds beyond that, ``forward[i]`` bytes during op i of the forward.
    """

    wish: Words
    avail: Words
    used: Words
    ran: Words
    held: Words
    early: Words
    runs: NDArray[np.int32]
    counts: Array
    level: Array
    above: Array
    forward: Array
    last_recompute: Array
    totals: Array
    dirty: Words
    dirty_above: Words
    mark: Words
    found: NDArray[np.int32]
    stamp_avail: Array
    stamp_held: Array
    stamp_live: Array
    wish_rows: Array
    wish_old: Words
    avail_rows: Array
    avail_old: Words
    affected: Array
    held_old: Words
    groups: Array
    groups_old: NDArray[np.int32]
    early_rows: Array
    above_rows: Array
    above_old: Array
    random_rows: Array


TIME, EVENTS, EARLY, FORWARD_PEAK, STAMP, LIVE_STAMP = 0, 1, 2, 3, 4, 5
WISHES, AVAILS, AFFECTED, GROUPS, OVERFULL, EARLIES, ABOVES, RANDOMS = 6, 7, 8, 9, 10, 11, 12, 13
LIMIT, PEAK, PEAK_AT, WAS_FORWARD = 14, 15, 16, 17
"""Entries of ``totals``: of the plan, then how full each part of the journal is, then limits and the peak."""


def retention_arrays(evaluator: Evaluator) -> RetentionArrays:
    """The arrays of an evaluator's problem, without the storages that are free to retain."""
    problem, a = evaluator.problem, evaluator.arrays
    graph, ops, positions = problem.graph, problem.op_count, len(problem.backward_order)
    free = a.pinned | (a.nbytes == 0)
    free[[s for s in problem.recompute if s not in problem.pinned]] = False
    reads = [[s for s in op.reads if not free[s]] for op in graph.ops]
    writes = [[s for s in op.writes if not free[s]] for op in graph.ops]
    backwards = [graph.ops[op].backward for op in problem.backward_order]
    needs = [[s for s in backward.reads if not free[s]] for backward in backwards if backward is not None]
    end = problem.producer.copy()
    for index, op in enumerate(graph.ops):
        end[list(op.reads)] = index
    useful = np.array(StageRelaxation(problem).last_useful, dtype=np.int64)
    fixed = np.zeros(len(free), dtype=np.bool_)
    fixed[list(problem.keep)] = True
    first = np.zeros(len(free), dtype=np.int64)
    first[list(problem.recompute - problem.keep)] = 1
    last = np.where(fixed | free, -1, np.minimum(useful, positions - 1))
    movable = np.flatnonzero(last >= first).astype(np.int64)
    members, class_start, class_of = _classes(problem, movable)
    cuts: list[list[int]] = [[] for _ in range(ops)]
    for s in movable.tolist():
        for before in range(int(problem.producer[s]), int(end[s])):
            cuts[before].append(s)
    own = np.searchsorted(-a.order, -np.arange(ops))
    doubled = [sum(int(a.nbytes[s]) for s in op.writes if s in problem.pinned) for op in graph.ops]
    return RetentionArrays(
        *csr(reads), *csr(writes), *csr(needs), *csr(cuts), a.order, a.producer, a.nbytes, a.forward_ns,
        a.workspace, a.random_state, np.array(doubled, dtype=np.int64), a.during, a.between, end, first, last, fixed,
        own, movable, members, class_start, class_of,
    )  # fmt: skip


def _classes(problem: Problem, movable: Array) -> tuple[Array, Array, Array]:
    """Movable storages of equal op type, size and output number: (members, class_start, class_of), in op order."""
    groups: dict[tuple[str, int, int], list[int]] = {}
    for index, storage in enumerate(movable.tolist()):
        op = problem.graph.ops[int(problem.producer[storage])]
        groups.setdefault((op.op_type, int(problem.nbytes[storage]), op.writes.index(storage)), []).append(index)
    class_of = np.zeros(len(movable), dtype=np.int64)
    for number, group in enumerate(groups.values()):
        class_of[group] = number
    members = np.array([i for group in groups.values() for i in group], dtype=np.int64)
    return members, np.cumsum([0, *(len(group) for group in groups.values())]).astype(np.int64), class_of


def empty_state(evaluator: Evaluator, h: RetentionArrays, events_limit: int) -> RetentionState:
    """A state without wishes, not yet built; plans of more than ``events_limit`` recomputations are turned away."""
    a = evaluator.arrays
    storages, ops, positions = len(h.nbytes), len(h.forward_ns), len(h.order)
    words, op_words = max(1, (positions + 63) // 64), (ops + 63) // 64
    capacity = max(1, min(ops, _MOST_RUNS // max(1, positions)))

    def rows(count: int, width: int = words) -> Words:
        return np.zeros((count, width), dtype=np.uint64)

    def ints(count: int) -> Array:
        return np.zeros(count, dtype=np.int64)

    pinned_nbytes = int(a.nbytes[a.pinned].sum())
    forward = ints(ops)
    for op in range(ops):
        forward[op] += a.base + a.workspace[op]
    for s in range(storages):
        made, end = int(h.producer[s]), ops if a.pinned[s] else int(h.forward_end[s]) + 1
        forward[made:end] += a.nbytes[s]
    state = RetentionState(
        rows(storages), rows(storages), rows(storages), rows(ops), rows(storages), rows(positions, op_words),
        np.zeros((positions, capacity), dtype=np.int32), ints(positions), ints(positions) + pinned_nbytes,
        ints(positions), forward, ints(ops) - 1, ints(18), np.zeros(words, dtype=np.uint64),
        np.zeros(words, dtype=np.uint64), np.zeros(op_words, dtype=np.uint64), np.zeros(ops + 1, dtype=np.int32),
        ints(storages), ints(storages), ints(storages), ints(storages), rows(storages), ints(storages),
        rows(storages), ints(storages), rows(storages), ints(positions),
        np.zeros((positions, 1 + capacity), dtype=np.int32), ints(2 * ops), ints(positions), ints(positions),
        ints(2 * ops),
    )  # fmt: skip
    state.totals[LIMIT] = events_limit
    for g in range(positions):
        for s in h.needs[h.needs_start[g] : h.needs_start[g + 1]]:
            state.used[s, g >> 6] |= np.uint64(1 << (g & 63))
    return state
