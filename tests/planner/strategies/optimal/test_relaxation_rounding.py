"""Plans from points of relaxations."""

from __future__ import annotations

from dataclasses import replace

from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.optimal.incumbents import Incumbents
from ogc_plan.planner.strategies.optimal.relaxation_rounding import round_points
from ogc_plan.planner.strategies.relaxation.stage_relaxation import Relaxation, StageRelaxation
from ogc_plan.planner.strategies.retention.annealer import RetentionAnnealer

from tests.graphs.small_cases import Case, cases


def rounded(case: Case, *, solved: bool = True) -> Incumbents:
    """A search that knows the roundings of a point alone."""
    incumbents = Incumbents(Evaluator(case.problem), case.budget_nbytes)
    point: Relaxation = StageRelaxation(case.problem).solve(case.budget_nbytes, (0, *case.stages))
    annealer = RetentionAnnealer(incumbents.evaluator, 0)
    round_points(incumbents, annealer, [point if solved else replace(point, solved=False)])
    return incumbents


def test_roundings_are_plans_within_the_budget_in_half_of_the_cases_and_cost_no_less_than_the_optimum() -> None:
    found = [(case.exact_ns, best.found.recompute_ns) for case in cases() if (best := rounded(case).best) is not None]
    assert len(found) > len(cases()) / 2
    assert [pair for pair in found if pair[1] < pair[0]] == []
