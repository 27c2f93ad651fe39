"""Simulated annealing on the retention matrix: plans that may compute a value any number of times.

It starts from any plan and keeps the best plan met. The cost of an iteration depends on what a move touches, hardly on
the size of the graph. Work is counted in iterations, never by the clock, with random numbers of our own (xorshift.py).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import numpy as np
from numpy.typing import NDArray

from ..evaluation.evaluator import Evaluation, Evaluator
from ..kernels.jit import compiled, sum_of
from ..kernels.xorshift import stream, uniform
from ..relaxation.stage_relaxation import Relaxation
from .conversion import build, load, store
from .moves import Random, move
from .peak_update import keep, settle, undo
from .recompute_groups import propagate, set_wishes
from .state import (
    EVENTS,
    GROUPS,
    PEAK,
    TIME,
    WISHES,
    Array,
    RetentionArrays,
    RetentionState,
    empty_state,
    retention_arrays,
)

_MOST_RECOMPUTATIONS = 8
"""Plans with more recomputations per op, on average, are rejected."""


@compiled
def _anneal(
    h: RetentionArrays,
    st: RetentionState,
    budget: int,
    minimise_peak: bool,
    first: int,
    last: int,
    total: int,
    heat: float,
    state: Random,
    penalty: NDArray[np.float64],
    best: Array,
    sequence: Array,
) -> None:
    """Run iterations first..last of total. ``best`` is (peak, time, length) of the plan in ``sequence``."""
    whole = max(1.0, float(sum_of(h.forward_ns)))
    peak, time = st.totals[PEAK], st.totals[TIME]
    for iteration in range(first, last):
        temperature = heat * 1e-3 ** (iteration / total)
        if minimise_peak:
            now = peak / budget + 0.002 * time / whole
        else:
            now = time / whole + penalty[0] * max(0.0, (peak - budget) / budget)
        limit = now - temperature * np.log(1.0 - uniform(state))  # the Metropolis draw, made first
        count = uniform(state)
        near = -1
        for number in range(3):
            if (number == 1 and count >= 0.4) or (number == 2 and count >= 0.15):
                break
            if number > 0 and uniform(state) >= 0.5:
                near = -1
            near = move(h, st, near, state)
        settled = False
        accepted = propagate(h, st)
        new = (0.002 if minimise_peak else 1.0) * st.totals[TIME] / whole
        if accepted and st.totals[GROUPS] > 0:  # else only wishes without effect have changed
            accepted = new <= limit
            if accepted:
                settle(h, st)
                settled = True
                if minimise_peak:
                    new += st.totals[PEAK] / budget
                else:
                    new += penalty[0] * max(0.0, (st.totals[PEAK] - budget) / budget)
                accepted = new <= limit
        if not accepted:
            undo(h, st, settled)
            st.totals[PEAK] = peak
        else:
            keep(st)
            peak, time = st.totals[PEAK], st.totals[TIME]
            if minimise_peak:
                better = peak < best[0] or (peak == best[0] and time < best[1])
            elif best[0] > budget:
                better = peak < best[0]
            else:
                better = peak <= budget and (time < best[1] or (time == best[1] and peak < best[0]))
            if better:
                best[0], best[1] = peak, time
                best[2] = store(h, st, sequence)
        if iteration % 1024 == 1023 and not minimise_peak:
            penalty[0] = min(penalty[0] * 1.1, 600.0) if peak > budget else max(penalty[0] * 0.97, 1.0)


class RetentionAnnealer:
    """Retention annealing over one problem."""

    def __init__(self, evaluator: Evaluator, seed: int) -> None:
        self.evaluator = evaluator
        self.arrays = retention_arrays(evaluator)
        self.state = stream(seed)

    def fork(self, seed: int) -> RetentionAnnealer:
        """An annealer of the same problem for another thread."""
        other = copy(self)
        other.evaluator, other.state = self.evaluator.fork(), stream(seed)
        return other

    def run(
        self,
        sequence: Array,
        budget_nbytes: int,
        iterations: int,
        *,
        heat: float,
        minimise_peak: bool = False,
        stop: Callable[[Array], bool] | None = None,
    ) -> tuple[Array, Evaluation]:
        """The best plan found from ``sequence``; feasible ones beat infeasible ones, then less time, then less peak.

        With ``minimise_peak`` the lowest peak wins, then the least time. ``heat`` is the starting temperature in units
        of one forward pass. ``stop`` is asked with the best plan between slices of the work and may end it early.
        """
        found = self.evaluator.evaluate_sequence(sequence)
        h = self.arrays
        if not len(h.movable) or iterations <= 0:
            return sequence, found
        limit = max(_MOST_RECOMPUTATIONS * len(h.forward_ns), 2 * len(sequence))
        st = empty_state(self.evaluator, h, limit)
        end = int(np.unique(sequence, return_index=True)[1][-len(h.forward_ns) :].max()) + 1
        if not load(h, st, sequence, end, np.zeros(len(h.nbytes), dtype=np.bool_)):
            return sequence, found
        room = np.zeros(limit + len(h.forward_ns) + len(h.order), dtype=np.int64)
        room[: len(sequence)] = sequence
        best = np.array([found.peak_nbytes, found.recompute_ns, len(sequence)], dtype=np.int64)
        budget, penalty, slices = max(1, budget_nbytes), np.array([6.0]), 8
        for part in range(slices):
            first, last = iterations * part // slices, iterations * (part + 1) // slices
            _anneal(h, st, budget, minimise_peak, first, last, iterations, heat, self.state, penalty, best, room)
            if stop is not None and stop(room[: best[2]].copy()):
                break
        answer = room[: best[2]].copy()
        return answer, self.evaluator.evaluate_sequence(answer)

    def from_stages(self, point: Relaxation, threshold: float) -> tuple[Array, Evaluation] | None:
        """A plan rounded from a relaxation: values below ``threshold`` are taken for 0, the others for 1.

        What is not alive during the backward of a stage is not retained after it, but may have served the
        recomputations before it. What the point recomputes before a stage that retains it is recomputed just before
        that stage unless something asks for it sooner; between two stages it is retained to its last use. None if the
        plan would be too long.
        """
        h = self.arrays
        st = empty_state(self.evaluator, h, _MOST_RECOMPUTATIONS * len(h.forward_ns))
        ops, positions = len(h.forward_ns), len(h.order)
        dropped, kept = point.held < threshold, point.kept >= threshold
        for s in range(len(h.nbytes)):
            if h.fixed[s]:
                st.wish[s] = 2**64 - 1
            set_wishes(h, st, s, 0 if kept[s] else 1, positions - 1, True)
            for q in np.flatnonzero(dropped[:, s]).tolist():
                after = point.stages[q] + 1
                set_wishes(h, st, s, after, after, False)
            st.totals[WISHES] = 0
        for group, runs in zip(point.stages, (point.remade, *point.recomputations), strict=False):
            for op in np.flatnonzero(runs >= threshold).tolist():
                at = ops - 1 - op
                st.early[group, at >> 6] |= np.uint64(1 << (at & 63))
        if not build(h, st):
            return None
        room = np.zeros(int(st.totals[EVENTS]) + len(h.forward_ns) + len(h.order), dtype=np.int64)
        store(h, st, room)
        return room, self.evaluator.evaluate_sequence(room)
