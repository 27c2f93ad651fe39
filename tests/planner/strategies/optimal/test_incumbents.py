"""The state of a search: when it may end, and how much work what is left is worth."""

from __future__ import annotations

import time
from concurrent.futures import Future

import pytest
from ogc_plan.planner.problem import Scope, build_problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluation, Evaluator
from ogc_plan.planner.strategies.optimal.beside import beside, wait_for
from ogc_plan.planner.strategies.optimal.effort import EFFORTS
from ogc_plan.planner.strategies.optimal.incumbents import Candidate, Search

from tests.graphs.builders import chain


def search_with(effort: str, gap: float) -> Search:
    """A search whose best plan is proven to lie at most ``gap`` of a step above the best one."""
    graph, costs = chain(6, forward_ns=1_000_000)
    problem = build_problem(graph, costs, Scope.ACTIVATIONS)
    evaluator = Evaluator(problem)
    search = Search(evaluator, 1 << 40, effort=EFFORTS[effort])
    found = evaluator.evaluate(evaluator.labels(0))
    cost = 100 * problem.store_all_ns
    search.best = Candidate(evaluator.scratch.events, Evaluation(found.peak_nbytes, cost, 0, 0))
    search.bound_ns = cost - round(gap * problem.store_all_ns)
    return search


@pytest.mark.parametrize(
    ("effort", "gap", "ends"),
    [("fast", 0.0009, True), ("default", 0.0011, False), ("default", 0.0009, True), ("high", 0.0004, False)],
)
def test_a_search_ends_at_the_gap_that_its_effort_asks_for(effort: str, gap: float, ends: bool) -> None:
    assert search_with(effort, gap).settled() is ends


def test_a_search_without_a_plan_has_an_infinite_gap() -> None:
    search = search_with("default", 0.0)
    search.best = None
    assert search.gap() == float("inf")


def test_a_narrow_gap_is_worth_a_part_of_the_work() -> None:
    assert search_with("default", 0.0025).worth() == pytest.approx(0.5, abs=0.1)


def test_the_highest_effort_does_all_work_whatever_the_gap() -> None:
    assert search_with("high", 0.0).worth() == 1.0


def test_what_waits_beside_an_interrupted_search_is_never_begun() -> None:
    search, begun = search_with("default", 0.01), []

    def busy() -> None:
        while not search.aborted:
            time.sleep(0.001)

    def interrupted() -> None:
        with beside(search) as pool:
            pool.submit(busy)
            pool.submit(begun.append, "the next")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert begun == []


def test_an_error_in_work_beside_a_search_is_raised_while_other_work_goes_on() -> None:
    working, failed = Future[None](), Future[None]()
    failed.set_exception(MemoryError())
    with pytest.raises(MemoryError):
        wait_for(search_with("default", 0.01), [working, failed])
    assert not working.done()
