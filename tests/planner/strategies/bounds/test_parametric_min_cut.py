"""The parametric cut bounds from below what exact search finds, and equals the one-stage linear program."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from ogc_plan.planner.graph import Storage
from ogc_plan.planner.problem import Scope, build_problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.optimal.incumbents import Incumbents
from ogc_plan.planner.strategies.relaxation.max_flow import Network, checked_value, maximum_flow
from ogc_plan.planner.strategies.relaxation.min_cut_rounding import round_cut
from ogc_plan.planner.strategies.relaxation.parametric_min_cut import MinCut
from ogc_plan.planner.strategies.relaxation.stage_relaxation import StageRelaxation

from tests.graphs.builders import chain
from tests.graphs.problems import between, random_problem
from tests.graphs.small_cases import cases
from tests.oracles.brute import minimum_peak, minimum_recompute_ns

PATHS = Network(4, 0, 3, np.array([0, 0, 1, 2, 1]), np.array([1, 2, 3, 3, 2]))
CAPACITY = np.array([5, 4, 3, 6, 9])


def test_the_bound_never_exceeds_the_optimum() -> None:
    above = []
    for case in cases():
        cut, smallest = MinCut(case.problem), minimum_peak(case.problem)
        for budget in (smallest, case.budget_nbytes):
            exact = minimum_recompute_ns(case.problem, budget)
            above += [case[1:]] if exact is None or cut.bound_ns(budget) > exact else []
    assert above == []


def test_the_bound_is_that_of_the_one_stage_linear_program() -> None:
    different = []
    for seed in range(72_000, 72_030):
        problem = random_problem(seed, 2, 60)
        cut, relaxed = MinCut(problem), StageRelaxation(problem)
        for percent in (80, 0, 30):
            relaxation = relaxed.solve(between(problem, percent), (0,))
            bound = cut.bound_ns(between(problem, percent))
            if relaxation.solved and abs(bound - relaxation.bound_ns) > 1:
                different.append((seed, percent, bound, relaxation.bound_ns))
    assert different == []


def test_an_op_that_must_run_once_is_never_priced_as_recomputed() -> None:
    graph, costs = chain(8, nbytes=10, forward_ns=5)
    once = replace(graph, ops=tuple(replace(op, once=i == 3) for i, op in enumerate(graph.ops)))
    problem = build_problem(once, costs, Scope.ACTIVATIONS)
    assert all(known.kept[3] for known in MinCut(problem).bracket(problem.floor_nbytes))


def test_petabytes_are_priced_like_bytes() -> None:
    bounds = []
    for unit in (1, 2**50):
        graph, costs = chain(40, nbytes=unit, forward_ns=10**9)
        bounds.append(MinCut(build_problem(graph, costs, Scope.ACTIVATIONS)).bound_ns(17 * unit))
    assert bounds[0] == bounds[1] > 0


def test_the_value_of_a_maximum_flow_is_its_minimum_cut() -> None:
    found = maximum_flow(PATHS, CAPACITY)
    cut = int(CAPACITY[found.smallest[PATHS.tails] & ~found.smallest[PATHS.heads]].sum())
    assert checked_value(PATHS, CAPACITY, found.flow) == cut == 9


@pytest.mark.parametrize(
    "flow",
    [[5, 4, 5, 4, 0], [1, 4, 2, 4, 0], [2, 4, 3, 4, 0], [2, 4, 2, 4, -1]],
    ids=["more than fits", "lost on the way", "made from nothing", "backwards"],
)
def test_an_illegal_flow_proves_nothing(flow: list[int]) -> None:
    assert checked_value(PATHS, CAPACITY, np.array(flow)) is None


def test_capacities_beyond_64_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="MAX_TOTAL"):
        checked_value(PATHS, np.full(5, 2**60), np.zeros(5, dtype=np.int64))


def test_rounding_a_long_chain_comes_within_a_hundredth_of_the_bound() -> None:
    rng = Random(7)
    graph, costs = chain(400, nbytes=10)
    sized = replace(graph, storages=tuple(Storage(s.name, rng.randint(1000, 9000)) for s in graph.storages))
    problem = build_problem(
        sized, tuple(replace(c, forward_ns=rng.randint(500, 1500)) for c in costs), Scope.ACTIVATIONS
    )
    budget = int(problem.nbytes.sum()) // 2
    incumbents, cut = Incumbents(Evaluator(problem), budget), MinCut(problem)
    round_cut(cut, incumbents.evaluator, budget, incumbents.offer)
    assert incumbents.best is not None
    assert incumbents.best.found.recompute_ns <= 1.01 * cut.bound_ns(budget)
