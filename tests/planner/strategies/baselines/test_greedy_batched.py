"""Greedy on thousands of tensors adds up the same times as the evaluator and ends within the same limits."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from ogc_plan.planner.problem import Problem
from ogc_plan.planner.strategies.baselines.greedy_batched import added_ns, descend_in_batches, keep_in_strides
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator, Labels
from ogc_plan.planner.strategies.evaluation.labels import Label

from tests.graphs.problems import chain_problem, random_problem


class Groups:
    """A random problem with every undecided storage in a group of its own."""

    def __init__(self, problem: Problem) -> None:
        self.evaluator = Evaluator(problem)
        self.members = np.flatnonzero(~self.evaluator.decided).astype(np.int64)
        self.start = np.arange(len(self.members) + 1)
        self.arguments = (self.evaluator.arrays, self.evaluator.scratch)

    def batches(self, labels: Labels, budget: int, batch: int) -> int:
        """The peak that descending in batches reaches on ``labels``."""
        descend_in_batches(*self.arguments, labels, self.start, self.members, budget, batch)
        return self.evaluator.evaluate(labels).peak_nbytes


def random_groups(seed: int) -> tuple[Groups, Random]:
    return Groups(random_problem(seed, 2, 30)), Random(seed)


@pytest.mark.parametrize("seed", range(12))
def test_the_added_time_of_drops_is_what_the_evaluator_says(seed: int) -> None:
    groups, rng = random_groups(seed)
    evaluator, a = groups.evaluator, groups.evaluator.arrays
    again, stack = np.zeros(len(a.forward_ns), dtype=np.bool_), np.zeros(len(a.forward_ns), dtype=np.int64)
    readers = np.bincount(a.needs, minlength=len(a.nbytes)).astype(np.int64)
    labels, added, measured = evaluator.labels(Label.KEEP), [], [0]
    for group in rng.sample(range(len(groups.members)), len(groups.members)):
        labels[groups.members[group]] = Label.DROP
        arguments = (a, labels, groups.start, groups.members, group, again, readers, stack)
        expected = added_ns(*arguments, False)
        added.append((expected, added_ns(*arguments, True)))
        measured.append(evaluator.evaluate(labels).recompute_ns)
    assert added == [(step, step) for step in np.diff(measured).tolist()]


@pytest.mark.parametrize("batch", [1, 7, 300])
def test_batches_of_any_size_end_within_a_budget_that_single_drops_reach(batch: int) -> None:
    groups = Groups(chain_problem(300))
    assert groups.batches(groups.evaluator.labels(Label.KEEP), 1800, batch) <= 1800


@pytest.mark.parametrize("seed", range(10))
def test_strides_stay_within_the_limit_and_never_cost_time(seed: int) -> None:
    groups, rng = random_groups(seed)
    evaluator = groups.evaluator
    labels = evaluator.labels(Label.DROP)
    before = evaluator.evaluate(labels)
    keep_all = evaluator.evaluate(evaluator.labels(Label.KEEP)).peak_nbytes
    limit = before.peak_nbytes + rng.randint(0, max(0, keep_all - before.peak_nbytes))
    keep_in_strides(*groups.arguments, labels, groups.start, groups.members, limit, 100)
    after = evaluator.evaluate(labels)
    assert (after.peak_nbytes <= limit, after.recompute_ns <= before.recompute_ns) == (True, True)
