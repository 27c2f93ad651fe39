"""The smallest peak: under several orders, under orders made for its plans, and at last with more annealing."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from threading import Event

from ogc_plan.planner.limits import NO_LIMITS, Limits
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.optimal.effort import EFFORTS, Effort
from ogc_plan.planner.strategies.optimal.incumbents import Incumbents
from ogc_plan.planner.strategies.optimal.problem_cache import ProblemCache
from ogc_plan.planner.strategies.optimal.smallest_peak import lower_peak_further
from ogc_plan.planner.strategies.optimal.solve_context import SolveContext
from ogc_plan.planner.strategies.optimal.strategy import smallest_peak

from tests.graphs.layered_graphs import layered_graph

DEFAULT = EFFORTS["default"]
SHORT = replace(DEFAULT, search=replace(DEFAULT.search, peak_iterations=5_000))
WITHOUT_ORDERS = replace(SHORT, orders=EFFORTS["fast"].orders)
STOPPED = Limits(stop=lambda: True)


def layered(seed: int = 2, ops: int = 100, width: int = 8) -> Problem:
    return build_problem(*layered_graph(Random(seed), ops, width), Scope.ACTIVATIONS)


def context(problem: Problem, limits: Limits = NO_LIMITS, effort: Effort = SHORT) -> SolveContext:
    return SolveContext(ProblemCache(problem), limits, effort, 0)


def smallest(of: SolveContext) -> int:
    return min(plans.peak_nbytes for plans in of.smallest())


def lowered(budget_nbytes: int, effort: Effort = SHORT) -> tuple[int, int]:
    """The smallest peak before and after more annealing towards a budget."""
    evaluator = Evaluator(layered())
    incumbents = Incumbents(evaluator, budget_nbytes, effort=effort)
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


def test_an_effort_without_orders_leaves_the_peak_as_it_is() -> None:
    before, after = lowered(1, WITHOUT_ORDERS)
    assert after == before


def test_orders_made_for_the_plans_have_smaller_peaks() -> None:
    problems = [layered(seed, 60, 6) for seed in range(3)]
    without = [smallest(context(problem, effort=WITHOUT_ORDERS)) for problem in problems]
    assert sum(smallest(context(problem)) for problem in problems) < sum(without)


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
