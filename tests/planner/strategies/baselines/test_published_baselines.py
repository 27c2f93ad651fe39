"""The published baselines `knapsack` and `checkmate`: legal plans within the budget, by the rules they name."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ogc_plan.planner.limits import NO_LIMITS
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies import strategy_named
from ogc_plan.planner.strategies.baselines import checkmate as lp_rounding
from ogc_plan.planner.strategies.baselines.articulation import saved
from ogc_plan.planner.strategies.baselines.checkmate import RetentionLP
from ogc_plan.planner.strategies.baselines.torch_knapsack import Knapsack, SavedTensors
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator

from tests.graphs.builders import training_graphs
from tests.graphs.problems import between, chain_problem, random_problem
from tests.oracles.replay import replayed

NAMES = ("knapsack", "checkmate")


@pytest.mark.parametrize("name", NAMES)
@given(graph=training_graphs(max_ops=25))
@settings(max_examples=15, deadline=None)
def test_what_the_user_keeps_is_never_recomputed(name, graph):
    training, costs, rng = graph
    free = [s for s in range(len(training.storages)) if s not in training.outputs]
    keep = frozenset(rng.sample(free, len(free) // 3))
    alone = {op for op, entry in enumerate(training.ops) if entry.writes and keep.issuperset(entry.writes)}
    problem = build_problem(training, costs, Scope.TOTAL, keep=keep)
    solution = strategy_named(name)(problem)
    assert solution.decisions is not None
    assert [op for op in alone if solution.decisions.sequence.count(op) > 1] == []


@pytest.mark.parametrize("name", NAMES)
def test_what_the_user_recomputes_is_not_retained_into_the_backward(name: str) -> None:
    problem = chain_problem(8, recompute=frozenset({3}))
    solution = strategy_named(name)(problem, between(problem, 60))
    assert solution.decisions is not None
    assert solution.decisions.sequence.count(3) > 1


@pytest.mark.parametrize("name", NAMES)
def test_a_budget_below_keep_all_is_met_by_recomputing_on_a_chain(name: str) -> None:
    problem = chain_problem(20, 100)
    solution = strategy_named(name)(problem, between(problem, 60))
    assert solution.objective_ns > 0


# knapsack


@given(
    items=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 50)), max_size=9),
    capacity=st.integers(0, 150),
)
@settings(max_examples=200, deadline=None)
def test_the_knapsack_is_as_good_as_the_best_subset(items, capacity):
    sizes, values = [size for size, _ in items], [value for _, value in items]
    subsets = (subset for count in range(len(items) + 1) for subset in combinations(range(len(items)), count))
    best = max(sum(values[i] for i in subset) for subset in subsets if sum(sizes[i] for i in subset) <= capacity)
    chosen = Knapsack(sizes, values).choose(capacity)
    assert (sum(values[i] for i in chosen), sum(sizes[i] for i in chosen) <= capacity) == (best, True)


@given(
    items=st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 50)), min_size=1, max_size=12),
    percent=st.integers(0, 100),
)
@settings(max_examples=100, deadline=None)
def test_the_knapsack_never_overfills_when_weights_are_rounded(items, percent):
    sizes = [size for size, _ in items]
    capacity = sum(sizes) * percent // 100
    chosen = Knapsack(sizes, [value for _, value in items]).choose(capacity)
    assert sum(sizes[i] for i in chosen) <= capacity


def recomputed_ops(problem: Problem, kept: frozenset[int]) -> set[int]:
    """Ops that run again when only ``kept`` and what the caller holds is alive at the start of the backward."""
    alive, runs = kept | problem.pinned | problem.keep, set()
    pending = [s for s in saved(problem.graph) if s not in alive]
    while pending:
        op = problem.graph.producer[pending.pop()]
        if op not in runs:
            runs.add(op)
            pending += [s for s in problem.graph.ops[op].reads if s not in alive]
    return runs


def test_the_cut_is_the_cheapest_set_that_spares_every_banned_op() -> None:
    wrong = []
    for seed in range(80):
        problem = random_problem(seed, 2, 7)
        rng = Random(seed)
        banned = {op for op in range(problem.op_count) if rng.random() < 0.5}
        free = [s for s in range(len(problem.nbytes)) if s not in problem.pinned | problem.keep]
        subsets = (frozenset(c) for count in range(len(free) + 1) for c in combinations(free, count))
        best = min(int(problem.nbytes[list(c)].sum()) for c in subsets if banned.isdisjoint(recomputed_ops(problem, c)))
        cut = SavedTensors(problem).cut(banned)
        weight = sum(int(problem.nbytes[s]) for s in cut if s not in problem.pinned | problem.keep)
        if banned & recomputed_ops(problem, cut) or weight != best:
            wrong.append(seed)
    assert wrong == []


# checkmate


def test_a_completed_sequence_is_legal_whatever_is_retained() -> None:
    different = []
    for seed in range(300, 340):
        problem, rng = random_problem(seed, 5, 25), Random(seed)
        lp = RetentionLP(problem, work=60)  # stages of several backwards
        retained = [
            frozenset(s for s, last in enumerate(lp.last_stage) if s in problem.keep or rng.random() < 0.6)
            for _ in lp.starts
        ]
        found = lp.complete(retained)
        if replayed(problem, found)[1] != Evaluator(problem).evaluate_sequence(found).recompute_ns:
            different.append(seed)
    assert different == []


def test_an_expired_time_limit_is_reported() -> None:
    problem = chain_problem(40, 100)
    assert lp_rounding.solve(problem, between(problem, 50), limits=NO_LIMITS.with_deadline(0.0)).stopped_early
