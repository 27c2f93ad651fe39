"""The compiled evaluator says what the readable rule and the replay say."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.schedule import lower
from ogc_plan.planner.simulate import simulate
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.evaluation.labels import Label, decisions_of

from tests.graphs.builders import chain, random_graph


def random_problem(seed: int) -> tuple[Problem, list[int]]:
    """A random graph under a random scope, with random labels."""
    rng = Random(seed)
    graph, costs = random_graph(rng, rng.randint(1, 40))
    problem = build_problem(graph, costs, rng.choice(list(Scope)))
    drawn = [rng.choice(list(Label)) for _ in graph.storages]
    return problem, [Label.KEEP if s in problem.keep else label for s, label in enumerate(drawn)]


def replayed(problem: Problem, labels: list[int]) -> tuple[int, int]:
    """Peak and recomputation time of the readable rule's order, by the replay."""
    timeline = simulate(problem.graph, problem.costs, lower(problem.graph, decisions_of(problem, labels)))
    peak = timeline.peak_total_nbytes if problem.scope is Scope.TOTAL else timeline.peak_activation_nbytes
    return peak, timeline.recompute_ns


@pytest.mark.parametrize("first_seed", range(0, 600, 100))
def test_the_compiled_order_of_computations_is_the_readable_one(first_seed: int) -> None:
    different = []
    for seed in range(first_seed, first_seed + 100):
        problem, labels = random_problem(seed)
        compiled = Evaluator(problem).decisions(np.array(labels, dtype=np.int8))
        if compiled != decisions_of(problem, labels):
            different.append(seed)
    assert different == []


@pytest.mark.parametrize("first_seed", range(1000, 1600, 100))
def test_the_compiled_peak_and_time_are_the_replays(first_seed: int) -> None:
    different = []
    for seed in range(first_seed, first_seed + 100):
        problem, labels = random_problem(seed)
        found = Evaluator(problem).evaluate(np.array(labels, dtype=np.int8))
        if (found.peak_nbytes, found.recompute_ns) != replayed(problem, labels):
            different.append(seed)
    assert different == []


def test_dropping_everything_on_a_chain_recomputes_each_op_but_the_last_once() -> None:
    graph, costs = chain(6, nbytes=10, forward_ns=5)
    problem = build_problem(graph, costs, Scope.ACTIVATIONS)
    evaluator = Evaluator(problem)
    assert evaluator.evaluate(evaluator.labels(Label.DROP)).recompute_ns == 5 * 5


def test_a_temporary_checkpoint_halves_the_memory_of_a_long_recomputation() -> None:
    graph, costs = chain(40, nbytes=100, forward_ns=1)
    problem = build_problem(graph, costs, Scope.ACTIVATIONS)
    evaluator = Evaluator(problem)
    dropped = evaluator.labels(Label.DROP)
    temporary = dropped.copy()
    temporary[20] = Label.TEMPORARY
    assert evaluator.evaluate(temporary).peak_nbytes < 0.6 * evaluator.evaluate(dropped).peak_nbytes


def test_no_labelling_runs_an_op_more_than_three_times() -> None:
    runs = 0
    for seed in range(2000, 2200):
        problem, labels = random_problem(seed)
        sequence = decisions_of(problem, labels).sequence
        runs = max(runs, *(sequence.count(op) for op in range(problem.op_count)))
    assert runs == 3


def test_what_the_user_decided_is_left_alone() -> None:
    graph, costs = chain(6, nbytes=10, forward_ns=5)
    problem = build_problem(graph, costs, Scope.ACTIVATIONS, keep=frozenset({2}), recompute=frozenset({3}))
    evaluator = Evaluator(problem)
    assert (evaluator.labels(Label.DROP)[2], evaluator.labels(Label.KEEP)[3]) == (Label.KEEP, Label.DROP)
