"""Relaxations cut short prove bounds, and generated rows raise them."""

from __future__ import annotations

import pytest
from ogc_plan.planner.model import load_model
from ogc_plan.planner.problem import Problem, Scope
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.optimal.effort import EFFORTS
from ogc_plan.planner.strategies.optimal.incumbents import Incumbents
from ogc_plan.planner.strategies.optimal.row_generation import generate_rows
from ogc_plan.planner.strategies.relaxation.stage_relaxation import StageRelaxation

from models.light import light_path
from tests.graphs.problems import random_problem
from tests.oracles.brute import minimum_peak, minimum_recompute_ns


def network() -> tuple[Problem, int]:
    """ResNet-50 and three tenths of what it holds when it stores everything."""
    model = load_model(light_path("resnet50"), batch=32)
    return model.problem(Scope.ACTIVATIONS), model.store_all().peak_activation_nbytes * 3 // 10


def test_a_program_cut_short_still_proves_some_of_the_bound() -> None:
    problem, budget = network()
    relaxed = StageRelaxation(problem)
    whole, part = relaxed.solve(budget, (0, 2)), relaxed.solve(budget, (0, 2), most_work=10_000_000)
    assert (part.solved, 0 < part.bound_ns < whole.bound_ns) == (False, True)


@pytest.mark.parametrize("work", [1, 3_000_000])
def test_the_bound_of_unfinished_work_is_never_above_the_optimum(work: int) -> None:
    above = []
    for seed in range(82_000, 82_040):
        problem = random_problem(seed, 6, 6)
        budget = minimum_peak(problem)
        exact = minimum_recompute_ns(problem, budget)
        assert exact is not None
        bound = StageRelaxation(problem).solve(budget, (0, 1, 2), most_work=work).bound_ns
        above += [(seed, bound, exact)] if bound > exact else []
    assert above == []


def test_generated_rows_bound_more_than_the_first_backward_alone() -> None:
    problem, budget = network()
    made = Incumbents(Evaluator(problem), budget, effort=EFFORTS["default"])
    generate_rows(made, StageRelaxation(problem))
    assert made.bound_ns > 1.02 * StageRelaxation(problem).solve(budget, (0,)).bound_ns
