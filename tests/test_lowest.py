"""The smallest peak: under several orders, under orders made for its plans, and at last with more annealing."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies import task as tasks
from ogc_plan.planner.strategies.effort import EFFORTS
from ogc_plan.planner.strategies.evaluate import Evaluator
from ogc_plan.planner.strategies.labels import Label
from ogc_plan.planner.strategies.lower_peak import lower_further
from ogc_plan.planner.strategies.optimal import smallest_peak
from ogc_plan.planner.strategies.prepared import Prepared
from ogc_plan.planner.strategies.search import Search
from ogc_plan.planner.strategies.task import Task

from tests.layered_graphs import layered_graph

SHORT = replace(EFFORTS["default"], labels=100_000, reaching=10_000, peaks=2_000, deepest=20_000, reorderings=1)


def layered(seed: int = 2, ops: int = 100, width: int = 8) -> Problem:
    return build_problem(*layered_graph(Random(seed), ops, width), Scope.ACTIVATIONS)


def task(problem: Problem, **changes: int | bool) -> Task:
    return Task(Prepared(problem), None, None, replace(SHORT, **changes), 0, None)


def lowest(of: Task) -> int:
    known, stopped = of.lowest()
    assert not stopped
    return min(plans.peak_nbytes for plans in known)


def test_an_order_of_a_low_floor_is_among_those_tried() -> None:
    problem = layered()
    floors = [prepared.problem.floor_of_order.nbytes for prepared, _ in task(problem).variants()]
    low = Prepared(problem).low(lambda: False)
    assert low is not None
    assert low[1].problem.floor_of_order.nbytes in floors


def test_once_it_is_late_no_order_of_a_low_floor_is_looked_for() -> None:
    prepared = Prepared(layered())
    assert (prepared.low(lambda: True), prepared.low(lambda: False) is None) == (None, False)


def test_no_order_is_tried_twice() -> None:
    for seed in range(10):
        tried = [orders for _, orders in task(layered(seed, 40, 5), eager=True).variants()]
        assert len(set(tried)) == len(tried)


def test_an_effort_that_is_not_eager_tries_no_others() -> None:
    assert max(len(task(layered(seed, 40, 5), eager=False).variants()) for seed in range(10)) == 2


def test_more_annealing_lowers_the_lowest_peak_further() -> None:
    evaluator = Evaluator(layered())
    search = Search(evaluator, 1, effort=SHORT)
    begun = search.offer(evaluator.labels(Label.DROP)).peak_nbytes
    lower_further(search)
    assert search.lowest is not None
    assert search.lowest.found.peak_nbytes < begun


def test_an_effort_without_it_leaves_the_peak_as_it_is() -> None:
    evaluator = Evaluator(layered())
    search = Search(evaluator, 1, effort=replace(SHORT, deepest=0))
    begun = search.offer(evaluator.labels(Label.DROP)).peak_nbytes
    lower_further(search)
    assert search.lowest is not None
    assert search.lowest.found.peak_nbytes == begun


def test_orders_made_for_the_plans_have_lower_peaks() -> None:
    problems = [layered(seed, 60, 6) for seed in range(3)]
    without = [lowest(task(problem, deepest=0, lowerings=0)) for problem in problems]
    assert sum(lowest(task(problem, deepest=0)) for problem in problems) < sum(without)


def test_what_the_last_annealing_finds_is_the_smallest_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    def finding(search: Search) -> None:
        assert search.lowest is not None
        search.lowest = replace(search.lowest, found=search.lowest.found._replace(peak_nbytes=1))

    monkeypatch.setattr(tasks, "lower_further", finding)
    assert lowest(task(layered())) == 1


def test_the_last_annealing_begins_where_the_reordering_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    def noting(search: Search) -> None:
        assert search.lowest is not None
        begun.append(search.lowest.found.peak_nbytes)

    monkeypatch.setattr(tasks, "lower_further", noting)
    problem = layered()
    assert [lowest(task(problem))] == begun


def test_what_was_found_once_is_not_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = Prepared(layered(1, 40, 5))
    first = smallest_peak(prepared)
    monkeypatch.setattr(tasks, "reorder_in_lanes", None)
    assert smallest_peak(prepared) == first


def test_a_search_that_is_stopped_is_not_remembered() -> None:
    prepared = Prepared(layered(1, 40, 5))
    smallest_peak(prepared, stop=lambda: True)
    assert prepared.lowered == {}
