"""The chain of blocks: what it plans is real, within the budget and repeatable; equal blocks are solved once."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.chain.block_cuts import crossing_of
from ogc_plan.planner.strategies.chain.chain import Chain
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.evaluation.prune_sequence import hold, prune
from ogc_plan.planner.training_graph import TrainingGraph

from tests.graphs.builders import Costs, chain, random_decisions, training_graphs
from tests.graphs.problems import between, input_chain, random_problem
from tests.oracles.brute import minimum_peak, minimum_recompute_ns
from tests.oracles.replay import replayed

SPACINGS = st.sampled_from([(1,), (1, 3), (2, 6), (3, 9, 27), (40,)])
Drawn = tuple[TrainingGraph, Costs, Random]


def problem_of(drawn: Drawn, *, wishes: bool = False) -> Problem:
    """A problem under either scope, with ``wishes`` some storages to keep and some to recompute."""
    graph, costs, rng = drawn
    once = {storage for op in graph.ops if op.once for storage in op.writes}
    free = [s for s in range(len(graph.storages)) if s not in once]
    rng.shuffle(free)
    chosen = free[: len(free) // 4] if wishes else []
    half = len(chosen) // 2
    return build_problem(
        graph, costs, rng.choice(list(Scope)), keep=frozenset(chosen[:half]), recompute=frozenset(chosen[half:])
    )


@settings(max_examples=20, deadline=None)
@given(training_graphs(max_ops=40), SPACINGS, st.booleans())
def test_every_sequence_replays_to_its_evaluation_within_the_budget(
    drawn: Drawn, spacings: tuple[int, ...], wishes: bool
) -> None:
    problem = problem_of(drawn, wishes=wishes)
    budget = between(problem, drawn[2].randint(0, 100))
    found = Chain(Evaluator(problem), spacings).sequences(budget)
    assert all(replayed(problem, s) == (e.peak_nbytes, e.recompute_ns) and e.peak_nbytes <= budget for s, e in found)


@settings(max_examples=12, deadline=None)
@given(training_graphs(max_ops=30), SPACINGS)
def test_the_best_plan_costs_no_more_than_any_sequence_and_fits(drawn: Drawn, spacings: tuple[int, ...]) -> None:
    problem = problem_of(drawn)
    budget = between(problem, drawn[2].randint(0, 100))
    planner = Chain(Evaluator(problem), spacings)
    if drawn[2].random() < 0.5:
        planner.refine(budget)
    found, best = planner.sequences(budget), planner.best(budget)
    assert (best is None) == (not found)
    if best is not None:
        peak, recompute_ns = replayed(problem, best[0])
        assert peak <= budget
        assert recompute_ns == best[1].recompute_ns <= found[0][1].recompute_ns


def test_no_plan_beats_the_exact_search_on_random_graphs() -> None:
    for seed in range(40):
        problem, rng = random_problem(seed, 2, 8), Random(seed)
        planner = Chain(Evaluator(problem), (1, 3))
        assert planner.smallest()[1].peak_nbytes >= minimum_peak(problem), seed
        budget = between(problem, rng.randint(0, 100))
        best = planner.best(budget)
        if best is not None:
            exact = minimum_recompute_ns(problem, budget)
            assert exact is not None, seed
            assert best[1].recompute_ns >= exact, seed


@pytest.mark.parametrize("count", [4, 6, 8])
def test_it_reaches_the_optimum_of_a_homogeneous_chain_at_every_budget(count: int) -> None:
    problem = input_chain(count)
    planner = Chain(Evaluator(problem), (1,))
    for budget in range(minimum_peak(problem), 1000 * (count + 3), 500):
        best = planner.best(budget)
        assert best is not None, budget
        assert best[1].recompute_ns == minimum_recompute_ns(problem, budget), budget


def test_equal_blocks_are_one_however_long_the_chain() -> None:
    unique = {len(Chain(Evaluator(build_problem(*chain(n), Scope.TOTAL)), (3,)).blocks.unique) for n in (60, 120, 240)}
    assert len(unique) == 1


def test_the_same_input_gets_the_same_plan() -> None:
    problem = random_problem(5, 60, 60)
    budget = between(problem, 40)
    first, second = (Chain(Evaluator(problem), (6, 20)).best(budget) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first[0].tolist() == second[0].tolist()


@settings(max_examples=40, deadline=None)
@given(training_graphs(max_ops=40))
def test_pruning_keeps_a_sequence_legal_and_makes_nothing_worse(drawn: Drawn) -> None:
    problem = problem_of(drawn)
    evaluator = Evaluator(problem)
    sequence = np.array(random_decisions(drawn[2], problem.graph).sequence, dtype=np.int64)
    fixed = evaluator.arrays.pinned | (problem.nbytes == 0)
    peak, recompute_ns = replayed(problem, sequence)
    shorter = replayed(problem, prune(evaluator, fixed, sequence))
    assert shorter[0] <= peak
    assert shorter[1] <= recompute_ns


@settings(max_examples=40, deadline=None)
@given(training_graphs(max_ops=40))
def test_retaining_instead_of_recomputing_stays_within_the_budget(drawn: Drawn) -> None:
    problem = problem_of(drawn)
    evaluator = Evaluator(problem)
    sequence = np.array(random_decisions(drawn[2], problem.graph).sequence, dtype=np.int64)
    peak, recompute_ns = replayed(problem, sequence)
    budget = peak + drawn[2].choice((0, 10, peak // 2))
    held = replayed(problem, hold(evaluator, crossing_of(evaluator).fixed, sequence, budget))
    assert held[0] <= budget
    assert held[1] <= recompute_ns
