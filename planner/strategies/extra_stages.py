"""Where more stages raise the bound most: around a re-run or a backward that leaves little room for what is held.

An interval of one backward pins the moment of its re-runs, so all that is held across it counts against them
(through_rows.py). Few such places matter; they are found by trying the likely ones on the root of the search. Often
one stage of the two that bound such an interval is enough; then the program stays small and branching goes deeper.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from .branch_and_bound import UNLIMITED, begin, never
from .stage_lp import StageLP

_WORTH = 0.01
_ENOUGH = 0.8
"""A smaller program that keeps this share of the gain is taken instead."""
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Places:
    """Backward positions for StageLP.program: ``stages``, and ``extra`` stages that split intervals between them."""

    stages: tuple[int, ...]
    extra: tuple[int, ...] = ()

    def with_stage(self, position: int) -> Places:
        """One more stage."""
        return Places(tuple(sorted({*self.stages, position})), self.extra)

    def with_extra(self, *positions: int) -> Places:
        """More extra stages."""
        return Places(self.stages, tuple(sorted({*self.extra, *positions})))


@dataclass(frozen=True, slots=True)
class _Trials:
    """Roots of the search, with few rounds of cuts, for places to be compared by."""

    relaxed: StageLP
    budget_nbytes: int
    incumbent_ns: int
    late: Callable[[], bool]

    def root_ns(self, places: Places) -> int:
        boxes = begin(self.relaxed, self.budget_nbytes, self.incumbent_ns, places.stages, self.late, places.extra)
        return boxes.run(1, UNLIMITED, _ROUNDS).root_ns


def extra_stages(
    relaxed: StageLP,
    budget_nbytes: int,
    incumbent_ns: int,
    stages: tuple[int, ...],
    *,
    trials: int = 24,
    pairs: int = 2,
    late: Callable[[], bool] = never,
) -> Places:
    """``stages`` and, around up to ``pairs`` intervals of one backward, those that raise the bound."""
    tried = _Trials(relaxed, budget_nbytes, incumbent_ns, late)
    best = Places(stages)
    reached = tried.root_ns(best)
    likely = _likely(relaxed, stages)[:trials]
    for _ in range(pairs):
        found: list[tuple[int, int]] = []
        for position in likely:
            if reached >= incumbent_ns or late():
                return best
            found.append((-tried.root_ns(best.with_extra(position - 1, position)), position))
        if not found or -min(found)[0] - reached <= _WORTH * (incumbent_ns - reached):
            break
        root, position = min(found)
        best, reached = _reduced(tried, best, position, reached, -root)
        likely = [other for _, other in sorted(found) if other != position][: trials // 3]
    return best


def _reduced(tried: _Trials, best: Places, position: int, before: int, root: int) -> tuple[Places, int]:
    """The smallest program around ``position`` that keeps most of the gain, and its root."""
    enough = before + _ENOUGH * (root - before)
    smaller = (
        best.with_stage(position),
        best.with_stage(position - 1),
        best.with_extra(position),
        best.with_extra(position - 1),
    )
    for places in smaller:
        reached = tried.root_ns(places)
        if reached >= enough:
            return places, reached
    return best.with_extra(position - 1, position), root


def _likely(relaxed: StageLP, stages: tuple[int, ...]) -> list[int]:
    """Positions, one of each interval in turn, by the bytes that a re-run just before them uses beside gradients.

    Of two neighbours only the larger one is taken.
    """
    problem = relaxed.problem
    scores = []
    for position in range(1, len(relaxed.order)):
        made = {int(problem.producer[s]) for s in relaxed.needs[position]}
        used = [
            sum(int(problem.nbytes[s]) for s in {*relaxed.reads[op], *problem.graph.ops[op].writes})
            + problem.costs[op].forward_workspace_nbytes
            for op in made
            if relaxed.op_useful[op] >= position
        ]
        scores.append((-max(used, default=0) - int(problem.between_nbytes[position]), position))
    edges = sorted({0, *stages})
    turns: dict[int, list[int]] = {}
    for _, position in sorted(scores):
        turn = turns.setdefault(bisect_left(edges, position), [])
        if all(abs(position - other) > 1 for other in turn):
            turn.append(position)
    ordered = [(place, interval, position) for interval, turn in turns.items() for place, position in enumerate(turn)]
    return [position for _, _, position in sorted(ordered)]
