"""The state of a search: when it is settled, and how much work its gap is worth."""

from __future__ import annotations

import pytest
from ogc_plan.planner.problem import Scope, build_problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluation, Evaluator
from ogc_plan.planner.strategies.optimal.effort import EFFORTS
from ogc_plan.planner.strategies.optimal.incumbents import Candidate, Incumbents

from tests.graphs.builders import chain


def search_with(effort: str, gap: float) -> Incumbents:
    """A search whose best plan is proven to lie at most ``gap`` of a step above the best one."""
    graph, costs = chain(6, forward_ns=1_000_000)
    problem = build_problem(graph, costs, Scope.ACTIVATIONS)
    evaluator = Evaluator(problem)
    incumbents = Incumbents(evaluator, 1 << 40, effort=EFFORTS[effort])
    found = evaluator.evaluate(evaluator.labels(0))
    cost = 100 * problem.store_all_ns
    incumbents.best = Candidate(evaluator.scratch.events, Evaluation(found.peak_nbytes, cost, 0, 0))
    incumbents.bound_ns = cost - round(gap * problem.store_all_ns)
    return incumbents


@pytest.mark.parametrize(
    ("effort", "gap", "ends"),
    [("fast", 0.0009, True), ("default", 0.0011, False), ("default", 0.0009, True), ("high", 0.0004, False)],
)
def test_a_search_ends_at_the_gap_that_its_effort_asks_for(effort: str, gap: float, ends: bool) -> None:
    assert search_with(effort, gap).settled() is ends


def test_a_search_without_a_plan_has_an_infinite_gap() -> None:
    incumbents = search_with("default", 0.0)
    incumbents.best = None
    assert incumbents.gap() == float("inf")


def test_a_narrow_gap_is_worth_a_part_of_the_work() -> None:
    assert search_with("default", 0.0025).worth() == pytest.approx(0.5, abs=0.1)


def test_the_highest_effort_does_all_work_whatever_the_gap() -> None:
    assert search_with("high", 0.0).worth() == 1.0
