"""Plans from points of relaxations that overrun the budget."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from ogc_plan.planner.strategies.anneal_holds import HoldAnnealer
from ogc_plan.planner.strategies.effort import EFFORTS
from ogc_plan.planner.strategies.evaluate import Array, Evaluator
from ogc_plan.planner.strategies.labels import Label
from ogc_plan.planner.strategies.lanes import annealers_of
from ogc_plan.planner.strategies.rounding import round_points
from ogc_plan.planner.strategies.search import Search
from ogc_plan.planner.strategies.stage_lp import Relaxation, StageLP

from tests.layered_graphs import tight_layers
from tests.small_cases import cases

SEEDS = range(6)


def begun(seed: int, roundings: int) -> tuple[Search, Relaxation]:
    """A search of a layered graph that knows no plan but that without any recomputation, and a point of stages."""
    problem, budget = tight_layers(seed)
    search = Search(Evaluator(problem), budget, effort=replace(EFFORTS["default"], roundings=roundings, enough=0.0))
    search.offer(search.evaluator.labels(Label.KEEP))
    return search, StageLP(problem).solve(budget, range(0, len(problem.backward_order), 3))


def rounded(seed: int, roundings: int) -> Search:
    """That search after the point was rounded."""
    search, point = begun(seed, roundings)
    round_points(search, annealers_of(HoldAnnealer, search), (point,))
    return search


def overrun(seed: int) -> bool:
    """Whether the point's roundings are all above the budget."""
    return rounded(seed, 0).best is None


def test_a_point_whose_roundings_overrun_the_budget_is_brought_into_it() -> None:
    reached = [rounded(seed, 3_000).best is not None for seed in SEEDS if overrun(seed)]
    assert (len(reached) > 2, sum(reached) > len(reached) / 2) == (True, True)


def test_what_is_found_is_a_plan_of_its_peak_within_the_budget() -> None:
    found = [(search.best, search) for search in (rounded(seed, 3_000) for seed in SEEDS) if search.best is not None]
    assert all(
        search.evaluator.evaluate_sequence(best.sequence) == best.found
        and best.found.peak_nbytes <= search.budget_nbytes
        for best, search in found
    )


def test_no_plan_from_a_point_costs_less_than_the_optimum() -> None:
    below = []
    for case in cases():
        search = Search(Evaluator(case.problem), case.budget_nbytes, effort=replace(EFFORTS["default"], roundings=500))
        round_points(
            search, annealers_of(HoldAnnealer, search), (StageLP(case.problem).solve(case.budget_nbytes, (0,)),)
        )
        below += [case[1:]] if search.best is not None and search.best.found.recompute_ns < case.exact_ns else []
    assert below == []


def test_the_same_point_gives_the_same_plan() -> None:
    def plan() -> Array:
        best = rounded(SEEDS[0], 3_000).best
        assert best is not None
        return best.sequence

    assert np.array_equal(plan(), plan())


def test_a_search_that_is_stopped_anneals_nothing() -> None:
    search, point = begun(next(seed for seed in SEEDS if overrun(seed)), 3_000)
    search.stop = lambda: True
    round_points(search, annealers_of(HoldAnnealer, search), (point,))
    assert search.best is None
