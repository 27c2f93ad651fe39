"""Annealing on holds: legal plans within the budget, exact optima that labels cannot express, the same every time."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.schedule import lower
from ogc_plan.planner.simulate import simulate
from ogc_plan.planner.solution import Decisions
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.relaxation.stage_relaxation import Relaxation
from ogc_plan.planner.strategies.retention.annealer import RetentionAnnealer

from tests.graphs.builders import SMALL_SIZES, chain, random_graph
from tests.oracles.brute import minimum_peak, minimum_recompute_ns

Sequence = NDArray[np.int64]


def random_problem(seed: int, low: int, high: int) -> Problem:
    rng = Random(seed)
    graph, costs = random_graph(rng, rng.randint(low, high), sizes=SMALL_SIZES)
    return build_problem(graph, costs, Scope.ACTIVATIONS)


def dropped(evaluator: Evaluator) -> Sequence:
    """The plan that recomputes whatever it may."""
    return np.array(evaluator.decisions(evaluator.labels(Label.DROP)).sequence, dtype=np.int64)


def point(held: NDArray[np.float64], recomputations: NDArray[np.float64] | None = None) -> Relaxation:
    """A point of a program with stages at the first and the seventh backward; the forward keeps everything."""
    again = np.zeros(held.shape) if recomputations is None else recomputations
    return Relaxation(0, held[0], True, (0, 6), held, again, np.ones(held.shape[1]), np.zeros(held.shape[1]))


def replayed_peak(problem: Problem, sequence: Sequence) -> int:
    schedule = lower(problem.graph, Decisions(tuple(sequence.tolist())))
    peak: int = simulate(problem.graph, problem.costs, schedule).peak_activation_nbytes
    return peak


def test_its_plans_replay_with_the_peak_they_claim() -> None:
    wrong = []
    for seed in range(40):
        problem = random_problem(seed, 5, 50)
        evaluator = Evaluator(problem)
        start = dropped(evaluator)
        budget = (problem.floor_nbytes + evaluator.evaluate_sequence(start).peak_nbytes) // 2
        sequence, found = RetentionAnnealer(evaluator, seed).run(start, budget, 2000, heat=0.05)
        if replayed_peak(problem, sequence) != found.peak_nbytes:
            wrong.append(seed)
    assert wrong == []


def test_a_start_within_the_budget_is_never_made_worse() -> None:
    worse = []
    for seed in range(100, 130):
        problem = random_problem(seed, 5, 50)
        evaluator = Evaluator(problem)
        start = dropped(evaluator)
        before = evaluator.evaluate_sequence(start)
        _, after = RetentionAnnealer(evaluator, seed).run(start, before.peak_nbytes, 1000, heat=0.3)
        if after.peak_nbytes > before.peak_nbytes or after.recompute_ns > before.recompute_ns:
            worse.append(seed)
    assert worse == []


@pytest.mark.parametrize("seed", [2, 14, 51, 52, 68, 99])
def test_it_reaches_optima_that_no_labelling_has(seed: int) -> None:
    problem = random_problem(seed, 6, 9)
    budget = minimum_peak(problem) + Random(seed).randint(0, 10)
    evaluator = Evaluator(problem)
    annealer = RetentionAnnealer(evaluator, seed)
    sequence, _ = annealer.run(dropped(evaluator), budget, 4000, heat=0.1, minimise_peak=True)
    _, found = annealer.run(sequence, budget, 8000, heat=0.1)
    assert (found.peak_nbytes <= budget, found.recompute_ns) == (True, minimum_recompute_ns(problem, budget))


@pytest.mark.parametrize("seed", [14, 51, 52, 93, 99])
def test_it_reaches_smallest_peaks_that_no_labelling_has(seed: int) -> None:
    problem = random_problem(seed, 6, 9)
    evaluator = Evaluator(problem)
    smallest = minimum_peak(problem)
    _, found = RetentionAnnealer(evaluator, seed).run(dropped(evaluator), smallest, 8000, heat=0.1, minimise_peak=True)
    assert found.peak_nbytes == smallest


def test_a_chain_at_its_floor_is_planned_although_every_value_is_computed_many_times() -> None:
    graph, costs = chain(30, nbytes=100)
    problem = build_problem(graph, costs, Scope.ACTIVATIONS)
    evaluator = Evaluator(problem)
    annealer = RetentionAnnealer(evaluator, 0)
    _, found = annealer.run(dropped(evaluator), problem.floor_nbytes, 60_000, heat=0.1, minimise_peak=True)
    assert found.peak_nbytes <= problem.floor_nbytes + 200


def test_the_same_seed_gives_the_same_plan() -> None:
    problem = random_problem(7, 40, 40)
    evaluator = Evaluator(problem)
    start = dropped(evaluator)
    plans = [RetentionAnnealer(evaluator, 3).run(start, problem.floor_nbytes, 3000, heat=0.1)[0] for _ in range(2)]
    assert np.array_equal(plans[0], plans[1])


def test_storages_the_user_keeps_or_recomputes_are_obeyed() -> None:
    graph, costs = chain(12, nbytes=100)
    problem = build_problem(graph, costs, Scope.ACTIVATIONS, keep=frozenset({4}), recompute=frozenset({5}))
    evaluator = Evaluator(problem)
    sequence, _ = RetentionAnnealer(evaluator, 0).run(dropped(evaluator), 1100, 20_000, heat=0.1)
    runs = sequence.tolist()
    assert (runs.count(4), runs.count(5) > 1) == (1, True)


def test_it_stops_when_it_is_asked_to() -> None:
    graph, costs = chain(12, nbytes=100)
    evaluator = Evaluator(build_problem(graph, costs, Scope.ACTIVATIONS))
    asked: list[Sequence] = []

    def stop(sequence: Sequence) -> bool:
        asked.append(sequence)
        return True

    RetentionAnnealer(evaluator, 0).run(dropped(evaluator), 900, 1000, heat=0.1, stop=stop)
    assert len(asked) == 1


def test_a_point_that_retains_everything_recomputes_nothing() -> None:
    graph, costs = chain(12)
    annealer = RetentionAnnealer(Evaluator(build_problem(graph, costs, Scope.ACTIVATIONS)), 0)
    rounded = annealer.from_stages(point(np.ones((2, 12))), 0.5)
    assert rounded is not None
    assert rounded[1].recompute_ns == 0


def test_a_value_dropped_at_two_stages_is_computed_three_times() -> None:
    graph, costs = chain(12)
    annealer = RetentionAnnealer(Evaluator(build_problem(graph, costs, Scope.ACTIVATIONS)), 0)
    rounded = annealer.from_stages(point(np.zeros((2, 12))), 0.5)
    assert rounded is not None
    assert rounded[0].tolist().count(0) == 3


def before_and_at(sequence: Sequence, op: int, position: int) -> tuple[int, int]:
    """How often ``op`` runs again before the group of a backward position, and in that group."""
    group = np.cumsum(sequence < 0) - (sequence < 0)
    again = (sequence == op) & (np.arange(len(sequence)) >= 12)
    return int((again & (group < position)).sum()), int((again & (group == position)).sum())


def test_a_value_not_retained_at_a_stage_may_serve_the_recomputations_just_before_it() -> None:
    graph, costs = chain(12)
    held = np.ones((2, 12))
    held[:, 3] = 0.0  # held up to the first backward, then made again from op 2's output
    kept = np.ones(12)
    kept[4] = 0.0  # made again from op 3's output, before the first backward
    annealer = RetentionAnnealer(Evaluator(build_problem(graph, costs, Scope.ACTIVATIONS)), 0)
    recomputations, remade = np.zeros((2, 12)), np.zeros(12)
    remade[4] = 1.0
    rounded = annealer.from_stages(Relaxation(0, held[0], True, (0, 6), held, recomputations, kept, remade), 0.5)
    assert rounded is not None
    assert [before_and_at(rounded[0], op, 1)[0] for op in (3, 4)] == [0, 1]


def test_a_value_retained_at_a_stage_and_not_at_the_one_before_is_recomputed_just_before_it() -> None:
    graph, costs = chain(12)
    held = np.ones((2, 12))
    held[0, 2:5] = 0.0
    recomputations = np.zeros((2, 12))
    recomputations[0, 2:5] = 1.0
    annealer = RetentionAnnealer(Evaluator(build_problem(graph, costs, Scope.ACTIVATIONS)), 0)
    rounded = annealer.from_stages(point(held, recomputations), 0.5)
    assert rounded is not None
    assert [before_and_at(rounded[0], op, 6) for op in (2, 3, 4)] == [(0, 1)] * 3


def test_a_recomputation_of_nothing_to_retain_is_left_out() -> None:
    graph, costs = chain(12)
    annealer = RetentionAnnealer(Evaluator(build_problem(graph, costs, Scope.ACTIVATIONS)), 0)
    rounded = annealer.from_stages(point(np.ones((2, 12)), np.ones((2, 12))), 0.5)
    assert rounded is not None
    assert rounded[1].recompute_ns == 0
