"""The compiled evaluator says what the readable rule and the replay say."""

from __future__ import annotations

from random import Random

import numpy as np
from ogc_plan.planner.problem import Problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.evaluation.labels import Label, decisions_of

from tests.graphs.problems import chain_problem, random_problem
from tests.oracles.replay import replayed


def labelled(seed: int) -> tuple[Problem, list[int]]:
    """A random problem with random labels."""
    problem, rng = random_problem(seed, 1, 40), Random(seed)
    drawn = [rng.choice(list(Label)) for _ in problem.graph.storages]
    return problem, [Label.KEEP if s in problem.keep else label for s, label in enumerate(drawn)]


def test_the_compiled_order_of_computations_is_the_readable_one() -> None:
    different = []
    for seed in range(200):
        problem, labels = labelled(seed)
        if Evaluator(problem).decisions(np.array(labels, dtype=np.int8)) != decisions_of(problem, labels):
            different.append(seed)
    assert different == []


def test_the_compiled_peak_and_time_are_the_replays() -> None:
    different = []
    for seed in range(1000, 1200):
        problem, labels = labelled(seed)
        found = Evaluator(problem).evaluate(np.array(labels, dtype=np.int8))
        if (found.peak_nbytes, found.recompute_ns) != replayed(problem, decisions_of(problem, labels)):
            different.append(seed)
    assert different == []


def test_dropping_everything_on_a_chain_recomputes_each_op_but_the_last_once() -> None:
    evaluator = Evaluator(chain_problem(6, forward_ns=5))
    assert evaluator.evaluate(evaluator.labels(Label.DROP)).recompute_ns == 5 * 5


def test_no_labelling_runs_an_op_more_than_three_times() -> None:
    runs = 0
    for seed in range(2000, 2100):
        problem, labels = labelled(seed)
        sequence = decisions_of(problem, labels).sequence
        runs = max(runs, *(sequence.count(op) for op in range(problem.op_count)))
    assert runs == 3


def test_what_the_user_decided_is_left_alone() -> None:
    evaluator = Evaluator(chain_problem(6, keep=frozenset({2}), recompute=frozenset({3})))
    assert (evaluator.labels(Label.DROP)[2], evaluator.labels(Label.KEEP)[3]) == (Label.KEEP, Label.DROP)
