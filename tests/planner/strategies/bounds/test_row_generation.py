"""Relaxations cut short or with fewer stages prove bounds, and generated rows raise them."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from ogc_plan.planner.model import load_model
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.optimal.effort import EFFORTS
from ogc_plan.planner.strategies.optimal.incumbents import Incumbents
from ogc_plan.planner.strategies.optimal.row_generation import generate_rows
from ogc_plan.planner.strategies.relaxation.stage_relaxation import StageRelaxation

from models.light import light_path
from tests.graphs.builders import SMALL_SIZES, random_graph
from tests.oracles.brute import minimum_peak, minimum_recompute_ns

TENTHS = (10, 7, 9, 8, 5, 3, 6)


def random_problem(seed: int, ops: int = 30) -> Problem:
    graph, costs = random_graph(Random(seed), ops)
    return build_problem(graph, costs, Scope.ACTIVATIONS)


def network() -> tuple[Problem, int]:
    """ResNet-50 and three tenths of what it holds when it stores everything."""
    model = load_model(light_path("resnet50"), batch=32)
    return model.problem(Scope.ACTIVATIONS), model.store_all().peak_activation_nbytes * 3 // 10


def stages_of(problem: Problem) -> tuple[int, ...]:
    return tuple(stage for stage in (0, 3, 7) if stage == 0 or stage < len(problem.backward_order))


def budgets(problem: Problem) -> list[int]:
    evaluator = Evaluator(problem)
    room = evaluator.evaluate(evaluator.labels(Label.KEEP)).peak_nbytes - problem.floor_nbytes
    return [problem.floor_nbytes + room * tenths // 10 for tenths in TENTHS]


def search(problem: Problem, budget_nbytes: int) -> Incumbents:
    return Incumbents(Evaluator(problem), budget_nbytes, effort=EFFORTS["default"])


def test_a_program_cut_short_still_proves_some_of_the_bound() -> None:
    problem, budget = network()
    relaxed = StageRelaxation(problem)
    whole, part = relaxed.solve(budget, (0, 2)), relaxed.solve(budget, (0, 2), most_work=10_000_000)
    assert (part.solved, 0 < part.bound_ns < whole.bound_ns) == (False, True)


@pytest.mark.parametrize("work", [1, 1_000_000, 3_000_000, 10_000_000])
def test_the_bound_of_unfinished_work_is_never_above_the_optimum(work: int) -> None:
    above = []
    for seed in range(82_000, 82_040):
        graph, costs = random_graph(Random(seed), 6, sizes=SMALL_SIZES)
        problem = build_problem(graph, costs, Scope.ACTIVATIONS)
        budget = minimum_peak(problem)
        exact = minimum_recompute_ns(problem, budget)
        assert exact is not None
        bound = StageRelaxation(problem).solve(budget, (0, 1, 2), most_work=work).bound_ns
        above += [(seed, bound, exact)] if bound > exact else []
    assert above == []


@pytest.mark.parametrize("seed", range(83_000, 83_010))
def test_stages_without_a_price_add_nothing_to_the_bound(seed: int) -> None:
    problem = random_problem(seed)
    relaxed, budget = StageRelaxation(problem), budgets(problem)[1]
    whole = relaxed.solve(budget, stages_of(problem))
    assert relaxed.solve(budget, (0, *whole.priced)).bound_ns >= whole.bound_ns - 1


def test_generated_rows_bound_more_than_the_first_backward_alone() -> None:
    problem, budget = network()
    made = search(problem, budget)
    generate_rows(made, StageRelaxation(problem))
    assert made.bound_ns > 1.02 * StageRelaxation(problem).solve(budget, (0,)).bound_ns


def test_generated_rows_leave_the_stages_that_prove_the_bound() -> None:
    problem, budget = network()
    made = search(problem, budget)
    generate_rows(made, StageRelaxation(problem))
    again = StageRelaxation(problem).solve(budget, sorted(made.stages)).bound_ns
    assert again >= made.bound_ns - problem.store_all_ns // 10_000


def test_roundings_name_where_they_first_run_over_the_budget() -> None:
    problem, budget = network()
    made = search(problem, budget)
    labels = made.evaluator.labels(Label.KEEP)
    sequence = np.array(made.evaluator.decisions(labels).sequence)
    held = made.evaluator.in_use(sequence)[sequence < 0]
    end = int(np.argmax(held <= budget))  # keeping everything is over the budget from the first backward on
    everything = StageRelaxation(problem).solve(2 * int(held.max()), (0,))
    assert int(np.argmax(held[:end])) in made.round(everything)[0]
