"""The published baselines `knapsack` and `checkmate`: legal plans within the budget, by the rules they name."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ogc_plan.planner.limits import NO_LIMITS
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.schedule import lower
from ogc_plan.planner.simulate import simulate
from ogc_plan.planner.solution import Decisions, Solution
from ogc_plan.planner.strategies import strategy_named
from ogc_plan.planner.strategies.baselines import checkmate as lp_rounding
from ogc_plan.planner.strategies.baselines import keep_all
from ogc_plan.planner.strategies.baselines import torch_knapsack as knapsack
from ogc_plan.planner.strategies.baselines.articulation import saved
from ogc_plan.planner.strategies.baselines.checkmate import RetentionLP
from ogc_plan.planner.strategies.baselines.torch_knapsack import Knapsack, SavedTensors
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator

from tests.graphs.builders import SMALL_SIZES, chain, linear, random_graph, training_graphs

NAMES = ("knapsack", "checkmate")


def random_problem(seed: int, low: int, high: int) -> Problem:
    rng = Random(seed)
    graph, costs = random_graph(rng, rng.randint(low, high), sizes=SMALL_SIZES)
    return build_problem(graph, costs, rng.choice(list(Scope)))


def replayed(problem: Problem, solution: Solution) -> tuple[int, int]:
    """(peak under the problem's scope, recomputation time) that the replay finds."""
    assert solution.decisions is not None
    timeline = simulate(problem.graph, problem.costs, lower(problem.graph, solution.decisions))
    total = problem.scope is Scope.TOTAL
    return timeline.peak_total_nbytes if total else timeline.peak_activation_nbytes, timeline.recompute_ns


def at_share(problem: Problem, share: int) -> int:
    """The budget at a percentage of the way from the floor to the keep-all peak."""
    floor = problem.floor_nbytes
    return floor + (keep_all.solve(problem).peak_nbytes - floor) * share // 100


@pytest.mark.parametrize("name", NAMES)
@given(graph=training_graphs(max_ops=30), scope=st.sampled_from(Scope), share=st.sampled_from((None, 20, 60, 100)))
@settings(max_examples=25, deadline=None)
def test_the_replay_finds_the_claimed_peak_and_time_within_the_budget(name, graph, scope, share):
    problem = build_problem(graph[0], graph[1], scope)
    budget = None if share is None else at_share(problem, share)
    solution = strategy_named(name)(problem, budget)
    if solution.decisions is None:
        assert solution.smallest_nbytes > budget
    else:
        within = budget is None or solution.peak_nbytes <= budget
        assert (*replayed(problem, solution), within) == (solution.peak_nbytes, solution.objective_ns, True)


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
    graph, costs = chain(8)
    problem = build_problem(graph, costs, Scope.ACTIVATIONS, recompute=frozenset({3}))
    solution = strategy_named(name)(problem, at_share(problem, 60))
    assert solution.decisions is not None
    assert solution.decisions.sequence.count(3) > 1


@pytest.mark.parametrize("name", NAMES)
def test_a_budget_below_keep_all_is_met_by_recomputing_on_a_chain(name: str) -> None:
    graph, costs = chain(20, nbytes=100)
    problem = build_problem(graph, costs, Scope.ACTIVATIONS)
    solution = strategy_named(name)(problem, at_share(problem, 60))
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


def test_a_full_knapsack_takes_everything_although_weights_are_rounded_up() -> None:
    sizes = [1_000_003] * 7
    assert Knapsack(sizes, [1] * 7).choose(sum(sizes)) == frozenset(range(7))


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


def test_of_equal_cuts_the_one_nearest_the_backward_is_taken() -> None:
    graph, costs = linear(((), (0,), (1,), (2,)), (10, 10, 10, 10), saved=(2,))
    assert SavedTensors(build_problem(graph, costs, Scope.ACTIVATIONS)).cut({0}) == {2}


def test_compute_intensive_random_and_reducing_ops_are_banned_and_others_not() -> None:
    banned = set()
    for seed in range(40):
        problem = random_problem(seed, 10, 30)
        size = problem.nbytes
        for op in knapsack.banned_ops(problem):
            entry = problem.graph.ops[op]
            read, written = int(size[list(entry.reads)].sum()), int(size[list(entry.writes)].sum())
            banned.add(entry.random_state_nbytes > 0 or 4 * written < read)
    assert banned == {True}


# checkmate


def fewest_runs(problem: Problem, lp: RetentionLP, retained: list[frozenset[int]], stage: int) -> int:
    """The least number of recomputations of a stage, by trying every set of ops."""
    wanted = {s for position in lp.covered(stage) for s in lp.needs[position]}
    wanted |= retained[stage + 1] if stage + 1 < len(retained) else set()
    ops = [i for i in range(problem.op_count) if not problem.graph.ops[i].once]

    def legal(chosen: tuple[int, ...]) -> bool:
        made = {s for op in chosen for s in problem.graph.ops[op].writes}
        there = made | retained[stage]
        return wanted <= there and all(there.issuperset(lp.reads[op]) for op in chosen)

    return next(count for count in range(len(ops) + 1) if any(legal(chosen) for chosen in combinations(ops, count)))


def test_completion_recomputes_as_few_ops_as_the_retained_values_allow() -> None:
    wrong = []
    for seed in range(200, 260):
        problem, rng = random_problem(seed, 2, 7), Random(seed)
        lp = RetentionLP(problem)
        lasting = {s for s in problem.keep if lp.last_stage[s] >= 0}
        retained: list[frozenset[int]] = []
        for stage in range(len(lp.starts)):
            useful = [s for s, last in enumerate(lp.last_stage) if last >= stage and not lp.free[s]]
            retained.append(frozenset(s for s in useful if s in lasting or rng.random() < 0.5))
        sequence = lp.complete(retained).tolist()
        runs = sum(fewest_runs(problem, lp, retained, stage) for stage in range(len(retained)))
        if len(sequence) - problem.op_count - len(problem.backward_order) != runs:
            wrong.append(seed)
    assert wrong == []


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
        timeline = simulate(problem.graph, problem.costs, lower(problem.graph, Decisions(tuple(found.tolist()))))
        if timeline.recompute_ns != Evaluator(problem).evaluate_sequence(found).recompute_ns:
            different.append(seed)
    assert different == []


def test_an_expired_time_limit_is_reported() -> None:
    graph, costs = chain(40, nbytes=100)
    problem = build_problem(graph, costs, Scope.ACTIVATIONS)
    assert lp_rounding.solve(problem, at_share(problem, 50), limits=NO_LIMITS.with_deadline(0.0)).stopped_early
