"""Where two stages side by side raise the bound most: around a re-run that leaves little room for what is held.

An interval of one backward pins the moment of its re-runs, so all that is held across it counts against them
(through_rows.py). Few such places matter; they are found by trying the likely ones on the root of the search.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from .branch_and_bound import bound, never
from .stage_lp import StageLP

_WORTH = 0.01


def extra_stages(
    relaxed: StageLP,
    budget_nbytes: int,
    incumbent_ns: int,
    stages: tuple[int, ...],
    *,
    trials: int = 12,
    pairs: int = 2,
    late: Callable[[], bool] = never,
) -> tuple[int, ...]:
    """Up to ``pairs`` pairs of neighbouring backward positions to give to `bound` as extra stages."""
    reached, best = bound(relaxed, budget_nbytes, incumbent_ns, stages, 1, late=late)[0].root_ns, frozenset[int]()
    likely = _likely(relaxed, stages)[:trials]
    for _ in range(pairs):
        found: list[tuple[int, int]] = []
        for position in likely:
            if reached >= incumbent_ns or late():
                return tuple(sorted(best))
            extra = tuple(sorted(best | {position - 1, position}))
            root = bound(relaxed, budget_nbytes, incumbent_ns, stages, 1, late=late, extra=extra)[0].root_ns
            found.append((-root, position))
        if not found or -min(found)[0] - reached <= _WORTH * (incumbent_ns - reached):
            break
        root, position = min(found)
        reached, best = -root, best | {position - 1, position}
        likely = [other for gained, other in sorted(found) if other != position][: trials // 3]
    return tuple(sorted(best))


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
