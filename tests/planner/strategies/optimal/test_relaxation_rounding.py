"""Plans from points of relaxations that overrun the budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ogc_plan.planner.strategies.baselines import greedy
from ogc_plan.planner.strategies.evaluation.evaluator import Array, Evaluation, Evaluator
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.optimal import relaxation_rounding as rounding
from ogc_plan.planner.strategies.optimal.effort import EFFORTS
from ogc_plan.planner.strategies.optimal.incumbents import Search
from ogc_plan.planner.strategies.optimal.parallel import annealers_of
from ogc_plan.planner.strategies.optimal.relaxation_rounding import round_points
from ogc_plan.planner.strategies.relaxation.stage_relaxation import Relaxation, StageLP
from ogc_plan.planner.strategies.retention.annealer import HoldAnnealer

from tests.graphs.layered_graphs import tight_layers
from tests.graphs.small_cases import cases

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


def test_a_rounding_betters_a_plan_that_is_known() -> None:
    better = 0
    for seed in SEEDS:
        search, point = begun(seed, 3_000)
        search.offer(greedy.labels(search.evaluator, search.budget_nbytes))
        known = search.best
        round_points(search, annealers_of(HoldAnnealer, search), (point,))
        better += known is not None and search.best is not known
    assert better > 0


def asked(search: Search, points: Sequence[Relaxation], share: float = 1.0) -> list[tuple[int, float]]:
    """Iterations and heat, times ops, of every annealing from these points, in order of heat."""
    made: list[tuple[int, float]] = []

    class Recorded(HoldAnnealer):
        def run(self, sequence: Array, _: int, iterations: int, *, heat: float, **__: Any) -> tuple[Array, Evaluation]:
            made.append((iterations, round(heat * search.problem.op_count, 3)))
            return sequence, self.evaluator.evaluate_sequence(sequence)

    annealers = annealers_of(HoldAnnealer, search)
    for annealer in annealers:
        annealer.__class__ = Recorded
    round_points(search, annealers, points, share=share)
    return sorted(made, key=lambda each: each[1])


OVERRUN, REACHED = 0, 2
"""Seeds whose points' roundings are above the budget; a greedy plan is within the second's."""


def whole(point: Relaxation, threshold: float) -> Relaxation:
    """The point in integers."""
    return replace(
        point,
        held=1.0 * (point.held >= threshold),
        reruns=0 * point.reruns,
        kept=1.0 * (point.kept >= threshold),
        remade=0 * point.remade,
    )


def test_a_point_in_integers_is_annealed_once_at_each_heat() -> None:
    search, point = begun(OVERRUN, 3_000)
    assert asked(search, [whole(point, 0.5)]) == [(3_000, 0.3), (3_000, 1.0)]


def test_a_point_met_twice_is_annealed_once() -> None:
    search, point = begun(OVERRUN, 3_000)
    assert len(asked(search, [whole(point, 0.5)] * 2)) == 2


def test_the_first_two_points_are_annealed() -> None:
    search, point = begun(OVERRUN, 3_000)
    assert len(asked(search, [whole(point, threshold) for threshold in (0.2, 0.5, 0.8, 1.0)])) == 4


def test_a_share_of_the_work_is_done() -> None:
    search, point = begun(OVERRUN, 3_000)
    assert {iterations for iterations, _ in asked(search, [point], 0.5)} == {1_500}


def test_a_point_that_was_not_solved_is_left_out() -> None:
    search, point = begun(OVERRUN, 3_000)
    assert asked(search, [replace(point, solved=False)]) == []


@pytest.mark.parametrize(("thorough", "widest", "annealed"), [(False, 1e-9, 0), (False, 9.0, 4), (True, 1e-9, 4)])
def test_no_point_is_annealed_from_that_tells_too_little_of_the_plans_below_one_that_is_known(
    thorough: bool, widest: float, annealed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounding, "_HOPELESS", widest)
    search, point = begun(REACHED, 3_000)
    search.offer(greedy.labels(search.evaluator, search.budget_nbytes))
    search.effort = replace(search.effort, thorough=thorough)
    assert len(asked(search, [whole(point, threshold) for threshold in (0.2, 0.5)])) == annealed


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
