"""Certified lower bounds, on time and on the peak, never exceed what exact search finds."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from ogc_plan.planner.problem import Scope, build_problem
from ogc_plan.planner.strategies.relaxation.stage_relaxation import lower_bound

from tests.graphs.builders import chain
from tests.graphs.problems import chain_problem
from tests.graphs.small_cases import cases
from tests.oracles.brute import minimum_peak, minimum_recompute_ns


def test_bound_and_floor_never_exceed_the_optimum() -> None:
    wrong = []
    for case in cases():
        rng, positions = Random(case.budget_nbytes), range(1, len(case.problem.backward_order))
        chosen = [sorted(rng.sample(positions, count)) for count in (0, len(positions) // 2, len(positions))]
        bounds = [lower_bound(case.problem, case.budget_nbytes, (0, *stages)) for stages in chosen]
        above = max(bounds) > case.exact_ns or case.problem.floor_nbytes > minimum_peak(case.problem)
        wrong += [case[1:]] if above else []
    assert wrong == []


def test_the_bound_is_not_trivial() -> None:
    problem = chain_problem(8, forward_ns=5)
    exact = minimum_recompute_ns(problem, 70)
    bound = lower_bound(problem, 70, tuple(range(8)))
    assert exact is not None
    assert 0 < bound <= exact


def test_the_bound_knows_which_op_must_not_be_run_again() -> None:
    graph, costs = chain(8, nbytes=10, forward_ns=5)
    costs = tuple(replace(cost, forward_ns=50) if i != 4 else cost for i, cost in enumerate(costs))
    once = replace(graph, ops=tuple(replace(op, once=i == 4) for i, op in enumerate(graph.ops)))
    bounds = [lower_bound(build_problem(g, costs, Scope.ACTIVATIONS), 70, tuple(range(8))) for g in (graph, once)]
    assert bounds[0] < bounds[1]


def test_more_stages_never_weaken_the_bound_by_more_than_rounding() -> None:
    weaker = []
    for case in cases()[:60]:
        one = lower_bound(case.problem, case.budget_nbytes)
        every = lower_bound(case.problem, case.budget_nbytes, tuple(range(len(case.problem.backward_order))))
        weaker += [case[1:]] if every < one - 1 else []
    assert weaker == []
