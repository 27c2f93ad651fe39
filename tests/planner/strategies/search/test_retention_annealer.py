"""Annealing on holds: legal plans within the budget, exact optima that labels cannot express, the same every time."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray
from ogc_plan.planner.problem import Scope
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.retention.annealer import RetentionAnnealer

from tests.graphs.problems import chain_problem, random_problem
from tests.oracles.brute import minimum_peak, minimum_recompute_ns
from tests.oracles.replay import replayed

Sequence = NDArray[np.int64]


def dropped(evaluator: Evaluator) -> Sequence:
    """The plan that recomputes whatever it may."""
    return np.array(evaluator.decisions(evaluator.labels(Label.DROP)).sequence, dtype=np.int64)


def test_its_plans_replay_with_the_peak_they_claim() -> None:
    wrong = []
    for seed in range(20):
        problem = random_problem(seed, 5, 50, scope=Scope.ACTIVATIONS)
        evaluator = Evaluator(problem)
        start = dropped(evaluator)
        budget = (problem.floor_nbytes + evaluator.evaluate_sequence(start).peak_nbytes) // 2
        sequence, found = RetentionAnnealer(evaluator, seed).run(start, budget, 2000, heat=0.05)
        if replayed(problem, sequence)[0] != found.peak_nbytes:
            wrong.append(seed)
    assert wrong == []


def test_a_start_within_the_budget_is_never_made_worse() -> None:
    worse = []
    for seed in range(100, 115):
        problem = random_problem(seed, 5, 50, scope=Scope.ACTIVATIONS)
        evaluator = Evaluator(problem)
        start = dropped(evaluator)
        before = evaluator.evaluate_sequence(start)
        _, after = RetentionAnnealer(evaluator, seed).run(start, before.peak_nbytes, 1000, heat=0.3)
        if after.peak_nbytes > before.peak_nbytes or after.recompute_ns > before.recompute_ns:
            worse.append(seed)
    assert worse == []


@pytest.mark.parametrize("seed", [2, 14, 51, 52, 68, 99])
def test_it_reaches_optima_that_no_labelling_has(seed: int) -> None:
    problem = random_problem(seed, 6, 9, scope=Scope.ACTIVATIONS)
    budget = minimum_peak(problem) + Random(seed).randint(0, 10)
    evaluator = Evaluator(problem)
    annealer = RetentionAnnealer(evaluator, seed)
    sequence, _ = annealer.run(dropped(evaluator), budget, 4000, heat=0.1, minimise_peak=True)
    _, found = annealer.run(sequence, budget, 8000, heat=0.1)
    assert (found.peak_nbytes <= budget, found.recompute_ns) == (True, minimum_recompute_ns(problem, budget))


@pytest.mark.parametrize("seed", [14, 51, 52, 93, 99])
def test_it_reaches_smallest_peaks_that_no_labelling_has(seed: int) -> None:
    problem = random_problem(seed, 6, 9, scope=Scope.ACTIVATIONS)
    evaluator = Evaluator(problem)
    smallest = minimum_peak(problem)
    _, found = RetentionAnnealer(evaluator, seed).run(dropped(evaluator), smallest, 8000, heat=0.1, minimise_peak=True)
    assert found.peak_nbytes == smallest


def test_a_chain_at_its_floor_is_planned_although_every_value_is_computed_many_times() -> None:
    problem = chain_problem(30, 100)
    evaluator = Evaluator(problem)
    annealer = RetentionAnnealer(evaluator, 0)
    _, found = annealer.run(dropped(evaluator), problem.floor_nbytes, 60_000, heat=0.1, minimise_peak=True)
    assert found.peak_nbytes <= problem.floor_nbytes + 200


def test_the_same_seed_gives_the_same_plan() -> None:
    problem = random_problem(7, 40, 40, scope=Scope.ACTIVATIONS)
    evaluator = Evaluator(problem)
    start = dropped(evaluator)
    plans = [RetentionAnnealer(evaluator, 3).run(start, problem.floor_nbytes, 3000, heat=0.1)[0] for _ in range(2)]
    assert np.array_equal(plans[0], plans[1])


def test_storages_the_user_keeps_or_recomputes_are_obeyed() -> None:
    evaluator = Evaluator(chain_problem(12, 100, keep=frozenset({4}), recompute=frozenset({5})))
    sequence, _ = RetentionAnnealer(evaluator, 0).run(dropped(evaluator), 1100, 20_000, heat=0.1)
    runs = sequence.tolist()
    assert (runs.count(4), runs.count(5) > 1) == (1, True)
