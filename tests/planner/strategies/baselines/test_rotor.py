"""Rotor's programme over articulation storages: whole segments, optimal on chains, never above the budget."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.schedule import lower
from ogc_plan.planner.simulate import simulate
from ogc_plan.planner.solution import Solution, Status
from ogc_plan.planner.strategies.baselines import rotor
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.evaluation.labels import Label

from tests.graphs.builders import chain, training_graphs
from tests.oracles.brute import minimum_peak, minimum_recompute_ns
from tests.planner.strategies.search.test_chain import Drawn, budgets, input_chain, problem_of


def checked(problem: Problem, solution: Solution) -> Iterator[bool]:
    """Whether the replay confirms the peak and the time that a solution claims."""
    if solution.decisions is not None:
        timeline = simulate(problem.graph, problem.costs, lower(problem.graph, solution.decisions))
        total = problem.scope is Scope.TOTAL
        yield (timeline.peak_total_nbytes if total else timeline.peak_activation_nbytes) == solution.peak_nbytes
        yield timeline.recompute_ns == solution.objective_ns


@settings(max_examples=30, deadline=None)
@given(training_graphs(max_ops=40))
def test_what_it_claims_is_what_the_replay_finds(drawn: Drawn) -> None:
    problem = problem_of(drawn)
    budget = budgets(problem, drawn[2])
    solution = rotor.solve(problem, budget)
    assert all([*checked(problem, solution), solution.decisions is None or solution.peak_nbytes <= budget])


@settings(max_examples=20, deadline=None)
@given(training_graphs(max_ops=40))
def test_the_smallest_peak_it_reports_can_be_planned_for(drawn: Drawn) -> None:
    problem = problem_of(drawn)
    solution = rotor.solve(problem)
    assert all([solution.decisions is not None, *checked(problem, solution)])


@settings(max_examples=20, deadline=None)
@given(training_graphs(max_ops=30))
def test_nothing_is_recomputed_with_twice_the_memory(drawn: Drawn) -> None:
    problem = problem_of(drawn)
    evaluator = Evaluator(problem)
    solution = rotor.solve(problem, 2 * evaluator.evaluate(evaluator.labels(Label.KEEP)).peak_nbytes)
    assert solution.status is Status.OPTIMAL


@pytest.mark.parametrize("count", [5, 8])
def test_it_is_optimal_on_a_homogeneous_chain(count: int) -> None:
    problem = input_chain(count)
    for budget in range(minimum_peak(problem) + 100, 1000 * (count + 3), 1000):  # with room for rounded sizes
        assert rotor.solve(problem, budget).objective_ns == minimum_recompute_ns(problem, budget), budget


def test_a_chain_is_cut_at_every_articulation_tensor() -> None:
    assert len(rotor.Rotor(Evaluator(build_problem(*chain(12), Scope.TOTAL))).blocks) == 12
