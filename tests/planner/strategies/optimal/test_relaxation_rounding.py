"""Plans from points of relaxations that overrun the budget."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from ogc_plan.planner.limits import Limits
from ogc_plan.planner.strategies.baselines import greedy
from ogc_plan.planner.strategies.evaluation.evaluator import Array, Evaluator
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.optimal.effort import EFFORTS
from ogc_plan.planner.strategies.optimal.incumbents import Incumbents
from ogc_plan.planner.strategies.optimal.parallel import annealers
from ogc_plan.planner.strategies.optimal.relaxation_rounding import round_points
from ogc_plan.planner.strategies.relaxation.stage_relaxation import Relaxation, StageRelaxation
from ogc_plan.planner.strategies.retention.annealer import RetentionAnnealer

from tests.graphs.layered_graphs import tight_layers
from tests.graphs.small_cases import cases

SEEDS = range(6)


def started(seed: int, roundings: int) -> tuple[Incumbents, Relaxation]:
    """A search of a layered graph that knows no plan but that without any recomputation, and a point of stages."""
    problem, budget = tight_layers(seed)
    incumbents = Incumbents(
        Evaluator(problem), budget, effort=replace(EFFORTS["default"], roundings=roundings, enough=0.0)
    )
    incumbents.offer(incumbents.evaluator.labels(Label.KEEP))
    return incumbents, StageRelaxation(problem).solve(budget, range(0, len(problem.backward_order), 3))


def rounded(seed: int, roundings: int) -> Incumbents:
    """That search after the point was rounded."""
    incumbents, point = started(seed, roundings)
    round_points(incumbents, annealers(RetentionAnnealer, incumbents), (point,))
    return incumbents


def overrun(seed: int) -> bool:
    """Whether the point's roundings are all above the budget."""
    return rounded(seed, 0).best is None


def test_a_point_whose_roundings_overrun_the_budget_is_brought_into_it() -> None:
    reached = [rounded(seed, 3_000).best is not None for seed in SEEDS if overrun(seed)]
    assert (len(reached) > 2, sum(reached) > len(reached) / 2) == (True, True)


def test_a_rounding_betters_a_plan_that_is_known() -> None:
    better = 0
    for seed in SEEDS:
        incumbents, point = started(seed, 3_000)
        incumbents.offer(greedy.labels(incumbents.evaluator, incumbents.budget_nbytes))
        known = incumbents.best
        round_points(incumbents, annealers(RetentionAnnealer, incumbents), (point,))
        better += known is not None and incumbents.best is not known
    assert better > 0


def test_a_point_that_was_not_solved_is_left_out() -> None:
    incumbents, point = started(SEEDS[0], 3_000)
    round_points(incumbents, annealers(RetentionAnnealer, incumbents), [replace(point, solved=False)])
    assert incumbents.best is None


def test_no_plan_from_a_point_costs_less_than_the_optimum() -> None:
    below = []
    for case in cases():
        incumbents = Incumbents(
            Evaluator(case.problem), case.budget_nbytes, effort=replace(EFFORTS["default"], roundings=500)
        )
        round_points(
            incumbents,
            annealers(RetentionAnnealer, incumbents),
            (StageRelaxation(case.problem).solve(case.budget_nbytes, (0,)),),
        )
        below += (
            [case[1:]] if incumbents.best is not None and incumbents.best.found.recompute_ns < case.exact_ns else []
        )
    assert below == []


def test_the_same_point_gives_the_same_plan() -> None:
    def plan() -> Array:
        best = rounded(SEEDS[0], 3_000).best
        assert best is not None
        return best.sequence

    assert np.array_equal(plan(), plan())


def test_a_search_that_is_stopped_anneals_nothing() -> None:
    incumbents, point = started(next(seed for seed in SEEDS if overrun(seed)), 3_000)
    incumbents.limits = Limits(stop=lambda: True)
    round_points(incumbents, annealers(RetentionAnnealer, incumbents), (point,))
    assert incumbents.best is None
