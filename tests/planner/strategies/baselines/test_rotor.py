"""Rotor's programme over articulation storages: whole segments, optimal on chains."""

from __future__ import annotations

import pytest
from ogc_plan.planner.problem import Scope, build_problem
from ogc_plan.planner.solution import Status
from ogc_plan.planner.strategies.baselines import rotor
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator

from tests.graphs.builders import chain
from tests.graphs.problems import input_chain, keep_all_peak, random_problem
from tests.oracles.brute import minimum_peak, minimum_recompute_ns


def test_nothing_is_recomputed_with_twice_the_memory() -> None:
    problems = [random_problem(seed, 2, 30) for seed in range(20)]
    assert {rotor.solve(problem, 2 * keep_all_peak(problem)).status for problem in problems} == {Status.OPTIMAL}


@pytest.mark.parametrize("count", [5, 8])
def test_it_is_optimal_on_a_homogeneous_chain(count: int) -> None:
    problem = input_chain(count)
    for budget in range(minimum_peak(problem) + 100, 1000 * (count + 3), 1000):  # with room for rounded sizes
        assert rotor.solve(problem, budget).objective_ns == minimum_recompute_ns(problem, budget), budget


def test_a_chain_is_cut_at_every_articulation_tensor() -> None:
    assert len(rotor.Rotor(Evaluator(build_problem(*chain(12), Scope.TOTAL))).blocks) == 12
