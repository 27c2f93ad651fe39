"""How much work an effort does, and the gap at which its search ends."""

from __future__ import annotations

from dataclasses import fields

import pytest
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluation, Evaluator
from ogc_plan.planner.strategies.optimal.effort import EFFORTS, Effort
from ogc_plan.planner.strategies.optimal.incumbents import Candidate, Incumbents

from tests.graphs.problems import chain_problem

PARTS = ("bound", "search", "orders")


def numbers(effort: Effort) -> dict[str, float]:
    return {
        f"{part}.{field.name}": getattr(getattr(effort, part), field.name)
        for part in PARTS
        for field in fields(getattr(effort, part))
    }


def test_a_higher_effort_does_no_less_of_anything() -> None:
    fast, default, high = (numbers(EFFORTS[effort]) for effort in ("fast", "default", "high"))
    less = [name for name in default if not fast[name] <= default[name] <= high[name]]
    assert less == ["bound.accepted_gap"]


def test_a_resumed_effort_does_no_more_of_anything() -> None:
    default = EFFORTS["default"]
    before, after = numbers(default), numbers(default.resumed())
    assert [name for name in before if after[name] > before[name]] == []


@pytest.mark.parametrize(
    ("effort", "gap", "ends"),
    [("fast", 0.0009, True), ("default", 0.0011, False), ("default", 0.0009, True), ("high", 0.0004, False)],
)
def test_a_search_ends_at_the_gap_that_its_effort_asks_for(effort: str, gap: float, ends: bool) -> None:
    problem = chain_problem(6, forward_ns=1_000_000)
    evaluator = Evaluator(problem)
    incumbents = Incumbents(evaluator, 1 << 40, effort=EFFORTS[effort])
    found = evaluator.evaluate(evaluator.labels(0))
    cost = 100 * problem.store_all_ns
    incumbents.best = Candidate(evaluator.scratch.events, Evaluation(found.peak_nbytes, cost, 0, 0))
    incumbents.bound_ns = cost - round(gap * problem.store_all_ns)
    assert incumbents.settled() is ends
