"""Small random problems whose optimum is known, with a tight budget, stages and an incumbent, to hold bounds to."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import NamedTuple

from ogc_plan.planner.problem import Problem, Scope, build_problem

from tests.graphs.builders import SMALL_SIZES, keep_all, random_graph
from tests.oracles.brute import minimum_peak, minimum_recompute_ns
from tests.oracles.replay import replayed

SEEDS = range(71_000, 71_120)


class Case(NamedTuple):
    """``incumbent`` is the cost of a plan that might be known: the optimum or more."""

    problem: Problem
    budget_nbytes: int
    exact_ns: int
    stages: tuple[int, ...]
    incumbent_ns: int


@cache
def _small_case(seed: int) -> Case:
    """A random problem at its smallest peak or a little above, with an incumbent at or above the optimum."""
    rng = Random(seed)
    graph, costs = random_graph(rng, rng.randint(3, 7), sizes=rng.choice((SMALL_SIZES, (1, 2, 3, 4, 5, 7, 9))))
    problem = build_problem(graph, costs, rng.choice(list(Scope)))
    smallest, loosest = minimum_peak(problem), replayed(problem, keep_all(graph))[0]
    budget = rng.choice((smallest, rng.randint(smallest, (smallest + loosest) // 2)))
    exact = minimum_recompute_ns(problem, budget)
    assert exact is not None
    positions = list(range(len(problem.backward_order)))
    stages = tuple(positions) if rng.random() < 0.6 else tuple(rng.sample(positions, rng.randint(0, len(positions))))
    return Case(problem, budget, exact, stages, rng.choice((exact, exact + 1, exact + rng.randint(0, 20), 10**6)))


def cases() -> list[Case]:
    """Those with a backward."""
    return [case for case in map(_small_case, SEEDS) if case.problem.backward_order]
