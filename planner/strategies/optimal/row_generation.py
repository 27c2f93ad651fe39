"""The bound by row generation: solve a relaxation at a few stages, round it, add the stages where roundings peak."""

from __future__ import annotations

from ..relaxation.min_cut_rounding import round_cut
from ..relaxation.parametric_min_cut import MinCut
from ..relaxation.stage_relaxation import Relaxation, StageRelaxation
from .incumbents import Incumbents

_MOST_STAGES, _STAGE_OPS = 14, 2_500
"""The most stages of a linear program, and the most stages times ops."""
_FRESH_STAGES = 3
"""The most stages that one relaxation may add."""
_STALLS, _THOROUGH_STALLS = 1, 2
"""Row generation ends after so many relaxations in a row whose bound rises by no more than ..."""
_RISE = 1e-5
"""... this share of the step, or, unless the effort is thorough, by no more than ..."""
_RISE_OF_GAP = 0.02
"""... this share of the gap between the bound and the best plan, counted as at most one step."""


def stage_limit(incumbents: Incumbents) -> int:
    """The most stages that a linear program of this problem may have."""
    return max(2, min(_MOST_STAGES, _STAGE_OPS // max(1, incumbents.problem.op_count)))


def bound_first_backward(incumbents: Incumbents, minimum: MinCut) -> None:
    """Bound the first backward alone by a minimum cut, and offer its kept sets: milliseconds even on large graphs."""
    incumbents.say("raising the bound")
    incumbents.bound_ns = max(incumbents.bound_ns, minimum.bound_ns(incumbents.budget_nbytes))
    round_cut(minimum, incumbents.evaluator, incumbents.budget_nbytes, incumbents.offer)


def generate_rows(incumbents: Incumbents, relaxed: StageRelaxation) -> Relaxation | None:
    """Raise the bound stage by stage, until roundings need no new stage or the bound stops rising.

    The first program has the stage of the first backward and, if more than two stages are allowed, the narrowest
    necks. A stage whose memory has no price in the dual is dropped: it costs iterations, and splitting an interval
    there may even lower the bound.

    Returns:
        The last relaxation, or None if there was no time for one.
    """
    step_ns, work = incumbents.problem.store_all_ns, incumbents.effort.bound.simplex_work
    most_stalls, rise_of_gap = (_THOROUGH_STALLS, 0.0) if incumbents.effort.thorough else (_STALLS, _RISE_OF_GAP)
    fresh = set(relaxed.necks(incumbents.budget_nbytes)[: min(_FRESH_STAGES, stage_limit(incumbents) - 2)])
    tried: set[int] = set()
    reached, stalled = -step_ns, 0
    relaxation = None
    for _ in range(_MOST_STAGES):
        if incumbents.out_of_time():
            break
        stages = incumbents.stages | fresh
        incumbents.say("raising the bound")
        relaxation = relaxed.solve(incumbents.budget_nbytes, sorted(stages), incumbents.limits, work)
        incumbents.bound_ns = max(incumbents.bound_ns, relaxation.bound_ns)
        best = incumbents.best
        gap_ns = 0 if best is None else min(step_ns, best.found.recompute_ns - incumbents.bound_ns)
        if relaxation.bound_ns > reached + max(_RISE * step_ns, rise_of_gap * gap_ns):
            stalled, tried = 0, set()
        else:
            stalled, tried = stalled + 1, tried | fresh
        if relaxation.bound_ns > reached:
            reached, incumbents.stages = relaxation.bound_ns, {0, *relaxation.priced}
        if not relaxation.solved or incumbents.settled():
            break
        peaks = incumbents.round(relaxation)
        fresh = set(sorted(peaks - incumbents.stages - tried)[:_FRESH_STAGES])
        if not fresh or stalled >= most_stalls or len(incumbents.stages) >= stage_limit(incumbents):
            break
    return relaxation
