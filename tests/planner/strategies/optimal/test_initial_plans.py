"""The plans of the other strategies that a search starts from."""

from __future__ import annotations

from random import Random

from ogc_plan.planner.limits import NO_LIMITS, Limits
from ogc_plan.planner.problem import Scope, build_problem
from ogc_plan.planner.strategies.baselines import greedy, per_layer
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.optimal.incumbents import Incumbents
from ogc_plan.planner.strategies.optimal.initial_plans import AncestorPlans
from ogc_plan.planner.strategies.optimal.problem_cache import ProblemCache

from tests.graphs.layered_graphs import layered_graph

DIFFERENT = build_problem(*layered_graph(Random(0), 30, 4), Scope.ACTIVATIONS)


def made(cache: ProblemCache, limits: Limits) -> None:
    for part in AncestorPlans(Incumbents(cache.evaluator, DIFFERENT.floor_nbytes), cache, limits).parts:
        part()


def test_strategies_that_know_no_budget_are_asked_once() -> None:
    cache = ProblemCache(DIFFERENT)
    made(cache, NO_LIMITS)
    first = cache.unbudgeted
    made(cache, NO_LIMITS)
    assert len(first) == 6
    assert cache.unbudgeted is first


def test_plans_that_a_stop_cut_short_are_not_taken_for_all() -> None:
    cache = ProblemCache(DIFFERENT)
    made(cache, Limits(stop=lambda: True))
    assert cache.unbudgeted == ()


def test_without_repeated_layers_both_strategies_decide_alike() -> None:
    evaluator = Evaluator(DIFFERENT)
    budget = DIFFERENT.floor_nbytes * 3 // 2
    assert per_layer.labels(evaluator, budget).tolist() == greedy.labels(evaluator, budget).tolist()
