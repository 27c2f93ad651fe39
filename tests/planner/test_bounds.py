"""Certified lower bounds, on time and on the peak, never exceed what exact search finds."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.relaxation.stage_relaxation import lower_bound

from tests.graphs.builders import SMALL_SIZES, chain, keep_all, random_graph
from tests.oracles.brute import minimum_peak, minimum_recompute_ns
from tests.planner.strategies.bounds.test_brute import replayed


def violations(seed: int) -> list[str]:
    """Bounds above the exact optimum, at the smallest peak and at two budgets above it; floors above that peak."""
    rng = Random(seed)
    graph, costs = random_graph(rng, rng.randint(2, 8), sizes=SMALL_SIZES)
    problem = build_problem(graph, costs, rng.choice(list(Scope)))
    smallest, loosest = minimum_peak(problem), replayed(problem, keep_all(graph))[0]
    found = []
    if problem.floor_nbytes > smallest:
        found.append(f"seed {seed}: floor {problem.floor_nbytes}, smallest peak {smallest}")
    for budget in sorted({smallest, rng.randint(smallest, loosest), rng.randint(smallest, loosest)}):
        exact = minimum_recompute_ns(problem, budget)
        assert exact is not None
        bound = lower_bound(problem, budget, random_stages(rng, problem))
        if bound > exact:
            found.append(f"seed {seed} budget {budget}: bound {bound}, optimum {exact}")
    return found


def random_stages(rng: Random, problem: Problem) -> tuple[int, ...]:
    """The first backward alone, some, or all of them."""
    positions = range(1, len(problem.backward_order))
    return (0, *sorted(rng.sample(positions, rng.choice((0, len(positions) // 2, len(positions))))))


@pytest.mark.parametrize("first_seed", range(54_000, 56_000, 100))
def test_bound_and_floor_never_exceed_the_optimum(first_seed: int) -> None:
    assert [text for seed in range(first_seed, first_seed + 100) for text in violations(seed)] == []


def test_the_bound_is_not_trivial() -> None:
    graph, costs = chain(8, nbytes=10, forward_ns=5)
    problem = build_problem(graph, costs, Scope.ACTIVATIONS)
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
    for seed in range(53_000, 53_060):
        rng = Random(seed)
        graph, costs = random_graph(rng, rng.randint(4, 8), sizes=SMALL_SIZES)
        problem = build_problem(graph, costs, Scope.ACTIVATIONS)
        budget = minimum_peak(problem)
        one = lower_bound(problem, budget)
        assert lower_bound(problem, budget, tuple(range(len(problem.backward_order)))) >= one - 1, seed
