"""Budgets that the default orders have no plan for: plan and order alternate until a plan fits."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from ogc_plan.planner.limits import NO_LIMITS, Limits
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluation
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.optimal.effort import EFFORTS, Effort
from ogc_plan.planner.strategies.optimal.fixed_order import FixedOrderSearch
from ogc_plan.planner.strategies.optimal.incumbents import Candidate
from ogc_plan.planner.strategies.optimal.parallel import threads
from ogc_plan.planner.strategies.optimal.problem_cache import KnownPlans, ProblemCache
from ogc_plan.planner.strategies.optimal.reach_budget import ReachBudget
from ogc_plan.planner.strategies.optimal.solve_context import SolveContext

from tests.graphs.builders import chain
from tests.graphs.layered_graphs import layered_graph

DEFAULT = EFFORTS["default"]


def branching(op_count: int = 60) -> Problem:
    return build_problem(*layered_graph(Random(3), op_count, 4), Scope.ACTIVATIONS)


def crossed() -> Problem:
    """A graph whose default backward order has a higher floor than some plan in another one peaks at."""
    return build_problem(*layered_graph(Random(1), 40, 8), Scope.ACTIVATIONS)


def reaching(
    problem: Problem, budget: int, *, limits: Limits = NO_LIMITS, effort: Effort = DEFAULT, earlier: bool = False
) -> ReachBudget:
    """The search for a plan within a budget, perhaps with an earlier plan, which stores everything."""
    cache = ProblemCache(problem)
    events = cache.evaluator.decisions(cache.evaluator.labels(Label.KEEP)).sequence
    sequence = cache.evaluator.scratch.events[: len(events)].copy()
    plans = (KnownPlans(cache, None, (Candidate(sequence, cache.evaluator.evaluate_sequence(sequence)),)),)
    context = SolveContext(cache, limits, effort, 0, plans if earlier else ())
    return ReachBudget(context, context.search(budget, cache))


def only(runs: list[FixedOrderSearch]) -> tuple[FixedOrderSearch, Evaluation]:
    (run,) = runs
    assert run.best is not None
    return run, run.best.found


def test_a_plan_is_found_within_a_budget_that_no_plan_in_the_default_orders_meets() -> None:
    problem = crossed()
    budget = problem.floor_of_order.nbytes - 1
    run, found = only(reaching(problem, budget).found())
    assert run.best is not None
    assert run.incumbents.evaluator.evaluate_sequence(run.best.sequence) == found
    assert found.peak_nbytes <= budget
    assert run.incumbents.bound_ns > 0


def test_started_in_parallel_it_finds_what_it_finds_afterwards() -> None:
    problem, plans = branching(160), []
    budget = problem.floor_of_order.nbytes * 11 // 10
    for parallel in (False, True):
        made = reaching(problem, budget, earlier=True)
        with threads(NO_LIMITS) as team:
            if parallel:
                made.start(team)
            plans.append([run.best and run.best.found for run in made.found()])
    assert plans[0] == plans[1]


@pytest.mark.parametrize(
    ("effort", "problem", "possible"),
    [
        (DEFAULT, branching(), True),
        (DEFAULT, build_problem(*chain(12), Scope.ACTIVATIONS), False),
        (replace(DEFAULT, lowerings=0), branching(), False),
        (replace(DEFAULT, following=0), branching(), False),
        (EFFORTS["high"], branching(), False),
    ],
)
def test_it_needs_several_orders_and_an_effort_with_rounds_and_iterations_for_it(
    effort: Effort, problem: Problem, possible: bool
) -> None:
    assert reaching(problem, problem.floor_of_order.nbytes + 1, effort=effort).possible is possible


@pytest.mark.parametrize("changes", [{"effort": EFFORTS["fast"]}, {"limits": Limits(stop=lambda: True)}])
def test_nothing_is_found_if_the_effort_does_not_allow_it_or_the_user_has_stopped(changes: dict[str, object]) -> None:
    problem = branching()
    assert reaching(problem, problem.floor_of_order.nbytes + 1, **changes).found() == []  # type: ignore[arg-type]


def test_a_plan_that_fits_in_the_default_orders_after_all_stays_in_them() -> None:
    problem = branching()
    run, _ = only(reaching(problem, 1 << 40, earlier=True).found())
    assert run.orders is None
