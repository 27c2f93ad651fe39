"""Searches under other orders: started in parallel they find the same, and end with the search they were for."""

from __future__ import annotations

import time
from dataclasses import replace
from random import Random
from threading import Event

import pytest
from ogc_plan.planner.limits import NO_LIMITS, Limits
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluation
from ogc_plan.planner.strategies.optimal.alternative_orders import ORDER_WORTH, AlternativeOrders
from ogc_plan.planner.strategies.optimal.effort import EFFORTS
from ogc_plan.planner.strategies.optimal.incumbents import Candidate
from ogc_plan.planner.strategies.optimal.parallel import threads
from ogc_plan.planner.strategies.optimal.problem_cache import ProblemCache
from ogc_plan.planner.strategies.optimal.solve_context import SolveContext

from tests.graphs.layered_graphs import layered_graph

SIZES = [60, 160]
"""The relaxations of the orders are compared on the first only."""


def tight(op_count: int) -> tuple[Problem, int]:
    """A graph of many branches, and a budget that only other orders than the default ones may meet."""
    problem = build_problem(*layered_graph(Random(3), op_count, 4), Scope.ACTIVATIONS)
    return problem, problem.floor_of_order.nbytes


def context(problem: Problem, limits: Limits = NO_LIMITS) -> SolveContext:
    return SolveContext(ProblemCache(problem), limits, replace(EFFORTS["default"], eager=True), 0)


def found(op_count: int, *, parallel: bool) -> list[tuple[object, int, object]]:
    """The orders, bounds and plans of the promising searches."""
    problem, budget = tight(op_count)
    whole = context(problem)
    alternatives = AlternativeOrders(whole, budget)
    with threads(NO_LIMITS) as team:
        if parallel:
            alternatives.start(team)
        runs = alternatives.promising(whole.search(budget, whole.cache).incumbents)
    return [(run.orders, run.incumbents.bound_ns, run.best and run.best.found) for run in runs]


@pytest.mark.parametrize("op_count", SIZES)
def test_started_in_parallel_they_find_what_they_find_afterwards(op_count: int) -> None:
    assert found(op_count, parallel=True) == found(op_count, parallel=False) != []


def test_searches_that_were_asked_for_may_go_on_afterwards() -> None:
    problem, budget = tight(SIZES[1])
    whole = context(problem)
    alternatives = AlternativeOrders(whole, budget)
    with threads(NO_LIMITS) as team:
        alternatives.start(team)
        runs = alternatives.promising(whole.search(budget, whole.cache).incumbents)
    assert not runs[0].incumbents.out_of_time()


def test_searches_that_nobody_asks_for_are_cancelled() -> None:
    problem, budget = tight(SIZES[1])
    started = time.monotonic()
    with threads(NO_LIMITS) as team:
        AlternativeOrders(context(problem), budget).start(team)
    assert time.monotonic() - started < 60


def test_a_search_that_can_save_nothing_is_not_promising() -> None:
    problem, budget = tight(SIZES[1])
    whole = context(problem)
    default = whole.search(budget, whole.cache).incumbents
    cost = int(0.5 * ORDER_WORTH * problem.store_all_ns)
    default.best = Candidate(default.evaluator.scratch.events, Evaluation(0, cost, 0, 0))
    assert AlternativeOrders(whole, budget).promising(default) == []


def test_a_user_who_stops_the_search_stops_them() -> None:
    problem, budget = tight(SIZES[0])
    pressed = Event()
    whole = context(problem, Limits(stop=pressed.is_set))
    alternatives = AlternativeOrders(whole, budget)
    with threads(whole.limits) as team:
        alternatives.start(team)
        pressed.set()
        assert alternatives.promising(whole.search(budget, whole.cache).incumbents) == []
