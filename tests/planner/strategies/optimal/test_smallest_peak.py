"""The smallest peak: under several orders, under orders made for its plans, and at last with more annealing."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from threading import Event

import pytest
from ogc_plan.planner.limits import NO_LIMITS, Limits
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.optimal.effort import EFFORTS
from ogc_plan.planner.strategies.optimal.incumbents import Incumbents
from ogc_plan.planner.strategies.optimal.problem_cache import ProblemCache
from ogc_plan.planner.strategies.optimal.smallest_peak import lower_peak_further
from ogc_plan.planner.strategies.optimal.solve_context import SolveContext
from ogc_plan.planner.strategies.optimal.strategy import smallest_peak

from tests.graphs.layered_graphs import layered_graph

SHORT = replace(EFFORTS["default"], labels=100_000, peaks=2_000, deepest=20_000, reorderings=1)
STOPPED = Limits(stop=lambda: True)


def layered(seed: int = 2, ops: int = 100, width: int = 8) -> Problem:
    return build_problem(*layered_graph(Random(seed), ops, width), Scope.ACTIVATIONS)


def context(problem: Problem, limits: Limits = NO_LIMITS, **changes: int | bool) -> SolveContext:
    return SolveContext(ProblemCache(problem), limits, replace(SHORT, **changes), 0)


def smallest(of: SolveContext) -> int:
    return min(plans.peak_nbytes for plans in of.smallest())


def lowered(budget_nbytes: int, **changes: int) -> tuple[int, int]:
    """The smallest peak before and after more annealing towards a budget."""
    evaluator = Evaluator(layered())
    incumbents = Incumbents(evaluator, budget_nbytes, effort=replace(SHORT, **changes))
    before = incumbents.offer(evaluator.labels(Label.DROP)).peak_nbytes
    lower_peak_further(incumbents)
    assert incumbents.smallest is not None
    return before, incumbents.smallest.found.peak_nbytes


def test_no_order_of_a_low_floor_is_searched_once_time_is_up_and_one_is_afterwards() -> None:
    cache = ProblemCache(layered())
    assert (cache.low(STOPPED), cache.low(NO_LIMITS) is None) == (None, False)


def test_more_annealing_lowers_the_smallest_peak_down_to_the_budget() -> None:
    before, after = lowered(1)
    budget = after + 10
    assert after < lowered(budget)[1] <= budget < before


def test_an_effort_without_more_annealing_leaves_the_peak_as_it_is() -> None:
    before, after = lowered(1, deepest=0)
    assert after == before


def test_orders_made_for_the_plans_have_smaller_peaks() -> None:
    problems = [layered(seed, 60, 6) for seed in range(3)]
    without = [smallest(context(problem, deepest=0, lowerings=0)) for problem in problems]
    assert sum(smallest(context(problem, deepest=0)) for problem in problems) < sum(without)


def test_the_same_problem_has_the_same_smallest_peak_asked_twice_or_anew() -> None:
    problem = layered(1, 40, 5)
    cache = ProblemCache(problem)
    assert len({smallest_peak(cache), smallest_peak(cache), smallest_peak(problem)}) == 1


def test_plans_of_a_search_that_was_stopped_are_not_kept() -> None:
    cache = ProblemCache(layered(1, 40, 5))
    smallest_peak(cache, limits=STOPPED)
    assert (cache.smallest, cache.reordered) == ({}, {})


def test_a_stop_while_the_search_runs_ends_it_with_a_plan() -> None:
    pressed, cache = Event(), ProblemCache(layered())
    limits = Limits(stop=pressed.is_set, progress=lambda *_: pressed.set())
    assert smallest_peak(cache, limits=limits) >= cache.problem.floor_nbytes


@pytest.mark.parametrize("thorough", [False, True])
def test_every_effort_reaches_no_peak_below_the_floor(thorough: bool) -> None:
    problem = layered(1, 40, 5)
    assert smallest(context(problem, thorough=thorough, lowerings=0, deepest=0)) >= problem.floor_nbytes
