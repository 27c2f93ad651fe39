"""Holds: every state is a legal plan, measured exactly, whatever has changed or been undone before."""

from __future__ import annotations

from random import Random

import numpy as np
from numpy.typing import NDArray
from ogc_plan.planner.problem import Problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.retention.conversion import load, store
from ogc_plan.planner.strategies.retention.peak_update import keep, settle, undo
from ogc_plan.planner.strategies.retention.recompute_groups import flip_early, propagate, set_wishes
from ogc_plan.planner.strategies.retention.state import (
    EVENTS,
    PEAK,
    TIME,
    RetentionArrays,
    RetentionState,
    empty_state,
    retention_arrays,
)

from tests.graphs.builders import keep_all, random_decisions
from tests.graphs.problems import chain_problem, random_problem

Sequence = NDArray[np.int64]


def grouped(problem: Problem, seed: int) -> Sequence:
    """A random plan whose recomputations follow the forward, each group in op order."""
    ops = problem.op_count
    sequence, group, ran = list(range(ops)), set[int](), 0
    for entry in random_decisions(Random(seed), problem.graph).sequence:
        if entry == ran:
            ran += 1
        elif entry >= 0 and ran == ops:
            group.add(entry)
        elif entry < 0:
            sequence += [*sorted(group), entry]
            group.clear()
    return np.array(sequence, dtype=np.int64)


def loaded(
    evaluator: Evaluator, h: RetentionArrays, sequence: Sequence, most_recomputations: int = 10**6
) -> RetentionState | None:
    state = empty_state(evaluator, h, most_recomputations)
    fits = load(h, state, sequence, len(h.forward_ns), np.zeros(len(h.nbytes), dtype=np.bool_))
    return state if fits else None


def plan_of(h: RetentionArrays, state: RetentionState) -> Sequence:
    sequence = np.zeros(len(h.forward_ns) + len(h.order) + int(state.totals[EVENTS]), dtype=np.int64)
    store(h, state, sequence)
    return sequence


def change(rng: Random, problem: Problem, h: RetentionArrays, state: RetentionState) -> None:
    """One to three random changes of wishes and, now and then, of what runs early."""
    positions = len(h.order)
    for _ in range(rng.randint(1, 3)):
        first, last = sorted((rng.randrange(positions), rng.randrange(positions)))
        set_wishes(h, state, rng.choice(h.movable.tolist()), first, last, rng.random() < 0.5)
    op = rng.randrange(problem.op_count)
    if rng.random() < 0.2 and not problem.graph.ops[op].once:
        flip_early(h, state, rng.randrange(positions), op)


def test_after_any_changes_and_undone_changes_peak_and_time_are_the_evaluators() -> None:
    different = []
    for seed in range(30):
        problem, rng = random_problem(seed, 1, 40), Random(seed)
        evaluator = Evaluator(problem)
        h = retention_arrays(evaluator)
        state = loaded(evaluator, h, grouped(problem, seed))
        assert state is not None
        for _ in range(40 if len(h.movable) else 0):
            change(rng, problem, h, state)
            assert propagate(h, state)
            settled = rng.random() < 0.7
            if settled:
                settle(h, state)
            if settled and rng.random() < 0.5:
                keep(state)
            else:
                undo(h, state, settled)
            settle(h, state)  # changes nothing; the peak in the totals is the last one settled
            found = evaluator.evaluate_sequence(plan_of(h, state))
            if (found.peak_nbytes, found.recompute_ns) != (state.totals[PEAK], state.totals[TIME]):
                different.append(seed)
    assert different == []


def test_undoing_a_change_restores_every_array_of_the_plan() -> None:
    names = ("wish", "avail", "used", "ran", "held", "early", "counts", "level", "above", "forward", "last_recompute")
    different = []
    for seed in range(200, 240):
        problem, rng = random_problem(seed, 1, 40), Random(seed)
        evaluator = Evaluator(problem)
        h = retention_arrays(evaluator)
        state = loaded(evaluator, h, grouped(problem, seed))
        assert state is not None
        for _ in range(10 if len(h.movable) else 0):
            before = [getattr(state, name).copy() for name in names]
            change(rng, problem, h, state)
            propagate(h, state)
            settle(h, state)
            undo(h, state, True)
            if not all(np.array_equal(old, getattr(state, name)) for name, old in zip(names, before, strict=True)):
                different.append(seed)
    assert different == []


def test_a_plan_turned_into_retention_and_back_has_no_higher_peak_and_no_more_time() -> None:
    raised = []
    for seed in range(300, 340):
        problem = random_problem(seed, 1, 40)
        evaluator = Evaluator(problem)
        h = retention_arrays(evaluator)
        sequence = grouped(problem, seed)
        state = loaded(evaluator, h, sequence)
        assert state is not None
        before, after = evaluator.evaluate_sequence(sequence), evaluator.evaluate_sequence(plan_of(h, state))
        if after.peak_nbytes > before.peak_nbytes or after.recompute_ns > before.recompute_ns:
            raised.append(seed)
    assert raised == []


def test_a_change_that_makes_the_plan_too_long_is_refused() -> None:
    evaluator = Evaluator(chain_problem(12))
    h = retention_arrays(evaluator)
    state = loaded(
        evaluator, h, np.array(keep_all(evaluator.problem.graph).sequence, dtype=np.int64), most_recomputations=5
    )
    assert state is not None
    for storage in h.movable:
        set_wishes(h, state, int(storage), 0, 11, False)
    assert not propagate(h, state)


def test_a_plan_longer_than_the_state_has_room_for_is_not_taken() -> None:
    evaluator = Evaluator(chain_problem(12))
    dropped = np.array(evaluator.decisions(evaluator.labels(0)).sequence, dtype=np.int64)
    assert loaded(evaluator, retention_arrays(evaluator), dropped, most_recomputations=5) is None
