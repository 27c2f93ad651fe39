"""The chain of blocks: what it plans is real, within the budget and repeatable; equal blocks are solved once."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.schedule import lower
from ogc_plan.planner.simulate import simulate
from ogc_plan.planner.solution import Decisions
from ogc_plan.planner.strategies.chain.block_cuts import crossing_of, nested_positions
from ogc_plan.planner.strategies.chain.blocks import blocks_of
from ogc_plan.planner.strategies.chain.chain import Chain
from ogc_plan.planner.strategies.chain.option_annealing import undominated
from ogc_plan.planner.strategies.chain.option_cost import measure
from ogc_plan.planner.strategies.chain.options import BlockSearch
from ogc_plan.planner.strategies.evaluation.evaluator import Array, Evaluator, scratch_of
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.evaluation.prune_sequence import hold, prune
from ogc_plan.planner.training_graph import BackwardOp, TrainingGraph

from tests.graphs.builders import SMALL_SIZES, Costs, chain, random_decisions, random_graph, training_graphs
from tests.oracles.brute import minimum_peak, minimum_recompute_ns

SPACINGS = st.sampled_from([(1,), (1, 3), (2, 6), (3, 9, 27), (40,)])
Drawn = tuple[TrainingGraph, Costs, Random]


def replayed(problem: Problem, sequence: Array) -> tuple[int, int]:
    """(peak in bytes under the problem's scope, recomputation ns) by the independent replay."""
    decisions = Decisions(tuple(sequence.tolist()))
    timeline = simulate(problem.graph, problem.costs, lower(problem.graph, decisions))
    total = problem.scope is Scope.TOTAL
    return timeline.peak_total_nbytes if total else timeline.peak_activation_nbytes, timeline.recompute_ns


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


def budgets(problem: Problem, rng: Random) -> int:
    """A budget between the floor and what keeping everything takes."""
    evaluator = Evaluator(problem)
    top = evaluator.evaluate(evaluator.labels(Label.KEEP)).peak_nbytes
    return rng.randint(min(top, problem.floor_nbytes), top)


def reran(sequence: Array) -> set[int]:
    """Ops that run forward more than once."""
    runs = sequence[sequence >= 0]
    return {int(op) for op, count in zip(*np.unique(runs, return_counts=True), strict=True) if count > 1}


@settings(max_examples=40, deadline=None)
@given(training_graphs(max_ops=40), SPACINGS, st.booleans())
def test_every_sequence_replays_to_its_evaluation_within_the_budget(
    drawn: Drawn, spacings: tuple[int, ...], wishes: bool
) -> None:
    problem = problem_of(drawn, wishes=wishes)
    budget = budgets(problem, drawn[2])
    found = Chain(Evaluator(problem), spacings).sequences(budget)
    assert all(replayed(problem, s) == (e.peak_nbytes, e.recompute_ns) and e.peak_nbytes <= budget for s, e in found)


@settings(max_examples=25, deadline=None)
@given(training_graphs(max_ops=40), SPACINGS)
def test_the_best_plan_costs_no_more_than_any_sequence_and_fits(drawn: Drawn, spacings: tuple[int, ...]) -> None:
    problem = problem_of(drawn)
    budget = budgets(problem, drawn[2])
    planner = Chain(Evaluator(problem), spacings)
    if drawn[2].random() < 0.5:
        planner.refine(budget)
    found, best = planner.sequences(budget), planner.best(budget)
    assert (best is None) == (not found)
    if best is not None:
        peak, recompute_ns = replayed(problem, best[0])
        assert peak <= budget
        assert recompute_ns == best[1].recompute_ns <= found[0][1].recompute_ns


@settings(max_examples=25, deadline=None)
@given(training_graphs(max_ops=30), SPACINGS)
def test_nothing_is_recomputed_with_twice_the_memory_of_keeping_everything(
    drawn: Drawn, spacings: tuple[int, ...]
) -> None:
    evaluator = Evaluator(problem_of(drawn))
    everything = evaluator.evaluate(evaluator.labels(Label.KEEP)).peak_nbytes
    best = Chain(evaluator, spacings).best(2 * everything)
    assert best is not None
    assert best[1].recompute_ns == 0


@settings(max_examples=25, deadline=None)
@given(training_graphs(max_ops=30), SPACINGS)
def test_an_op_that_must_run_once_is_never_recomputed(drawn: Drawn, spacings: tuple[int, ...]) -> None:
    problem = problem_of(drawn)
    sequence, _ = Chain(Evaluator(problem), spacings).smallest()
    assert not any(problem.graph.ops[op].once for op in reran(sequence))


def first_copies_read(problem: Problem, sequence: Array) -> set[int]:
    """Storages of which some backward reads the copy that the op's first run made."""
    ran: set[int] = set()
    again: set[int] = set()  # ops whose newest run is not their first
    found: set[int] = set()
    for entry in sequence.tolist():
        if entry >= 0:
            again |= {entry} & ran
            ran.add(entry)
            continue
        backward = problem.graph.ops[~entry].backward
        assert backward is not None
        found |= {s for s in backward.reads if int(problem.producer[s]) not in again}
    return found


@settings(max_examples=25, deadline=None)
@given(training_graphs(max_ops=30), SPACINGS)
def test_a_tensor_to_be_recomputed_is_never_retained_into_the_backward(drawn: Drawn, spacings: tuple[int, ...]) -> None:
    problem = problem_of(drawn, wishes=True)
    best = Chain(Evaluator(problem), spacings).best(2 * budgets(problem, drawn[2]))
    wished = {s for s in problem.recompute - problem.pinned if problem.nbytes[s] > 0}
    assert best is None or not wished & first_copies_read(problem, best[0])


def test_no_plan_beats_the_exact_search_on_random_graphs() -> None:
    for seed in range(40):
        rng = Random(seed)
        graph, costs = random_graph(rng, rng.randint(2, 8), sizes=SMALL_SIZES)
        problem = build_problem(graph, costs, rng.choice(list(Scope)))
        planner = Chain(Evaluator(problem), (1, 3))
        assert planner.smallest()[1].peak_nbytes >= minimum_peak(problem), seed
        budget = budgets(problem, rng)
        best = planner.best(budget)
        if best is not None:
            exact = minimum_recompute_ns(problem, budget)
            assert exact is not None, seed
            assert best[1].recompute_ns >= exact, seed


def input_chain(count: int) -> Problem:
    """A homogeneous chain whose backwards read their input only, where nested checkpoints are optimal."""
    graph, costs = chain(count, nbytes=1000)
    ops = [replace(op, backward=replace(op.backward or BackwardOp(), reads=op.reads)) for op in graph.ops]
    return build_problem(replace(graph, ops=tuple(ops)), costs, Scope.ACTIVATIONS)


@pytest.mark.parametrize("count", [4, 6, 8])
def test_it_reaches_the_optimum_of_a_homogeneous_chain_at_every_budget(count: int) -> None:
    problem = input_chain(count)
    planner = Chain(Evaluator(problem), (1,))
    for budget in range(minimum_peak(problem), 1000 * (count + 3), 500):
        best = planner.best(budget)
        assert best is not None, budget
        assert best[1].recompute_ns == minimum_recompute_ns(problem, budget), budget


def test_the_smallest_peak_of_a_homogeneous_chain_is_the_true_minimum() -> None:
    problem = build_problem(*chain(9), Scope.ACTIVATIONS)
    assert Chain(Evaluator(problem), (1,)).smallest()[1].peak_nbytes == minimum_peak(problem)


def test_equal_blocks_are_one_however_long_the_chain() -> None:
    unique = {len(Chain(Evaluator(build_problem(*chain(n), Scope.TOTAL)), (3,)).blocks.unique) for n in (60, 120, 240)}
    assert len(unique) == 1


def test_the_cuts_of_repeated_layers_repeat() -> None:
    graph, costs = chain(96)
    costs = tuple(replace(cost, forward_ns=1 + op % 8) for op, cost in enumerate(costs))
    storages = tuple(
        replace(storage, nbytes=(8, 5, 7, 3, 9, 6, 9, 4)[s % 8]) for s, storage in enumerate(graph.storages)
    )
    evaluator = Evaluator(build_problem(replace(graph, storages=storages), costs, Scope.ACTIVATIONS))
    (cuts,) = nested_positions(evaluator, crossing_of(evaluator), [6])
    inner = cuts[2:-2]
    assert set(np.diff(inner).tolist()) == {8}


@settings(max_examples=25, deadline=None)
@given(training_graphs(max_ops=40))
def test_coarser_cuts_are_among_the_finer_ones(drawn: Drawn) -> None:
    evaluator = Evaluator(problem_of(drawn, wishes=True))
    coarse, fine = nested_positions(evaluator, crossing_of(evaluator), [8, 2])
    assert set(coarse.tolist()) <= set(fine.tolist())


def test_the_same_input_gets_the_same_plan() -> None:
    problem = build_problem(*random_graph(Random(5), 60), Scope.ACTIVATIONS)
    budget = budgets(problem, Random(1))
    first, second = (Chain(Evaluator(problem), (6, 20)).best(budget) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first[0].tolist() == second[0].tolist()


@settings(max_examples=25, deadline=None)
@given(training_graphs(max_ops=14))
def test_the_options_of_a_single_block_are_what_the_evaluator_says(drawn: Drawn) -> None:
    problem = problem_of(drawn)
    evaluator = Evaluator(problem)
    blocks = blocks_of(evaluator, crossing := crossing_of(evaluator), [np.array([0, problem.op_count])])
    storages = np.flatnonzero(~crossing.fixed)
    storages = storages[np.argsort(problem.producer[storages], kind="stable")]
    search = BlockSearch(blocks.unique[0], last=False)
    search.sweep(20)
    for option in search.options():
        labels = evaluator.labels(Label.KEEP)
        labels[storages] = option.labels
        found = evaluator.evaluate(labels)
        peak = max(
            int(blocks.first_nbytes[0]) + option.forward_nbytes, int(blocks.again_nbytes[0]) + option.backward_nbytes
        )
        assert option.extra_ns == found.recompute_ns
        runs = reran(np.array(evaluator.decisions(labels).sequence))
        if not any(crossing.fixed[s] for op in runs for s in problem.graph.ops[op].writes):  # those are made twice
            assert peak >= found.peak_nbytes


def test_refining_at_one_price_loses_no_option() -> None:
    problem = build_problem(*chain(24), Scope.ACTIVATIONS)
    evaluator = Evaluator(problem)
    crossing = crossing_of(evaluator)
    (block,) = blocks_of(evaluator, crossing, [np.array([0, problem.op_count])]).unique
    search = BlockSearch(block, last=False)
    search.sweep(50)
    before = min(10 * option.extra_ns + option.held_nbytes for option in search.options())
    search.refine(np.array([0.1]), 200)
    assert min(10 * option.extra_ns + option.held_nbytes for option in search.options()) <= before


def test_a_labelling_it_is_told_of_is_an_option_or_matched_by_one() -> None:
    problem = build_problem(*chain(24), Scope.ACTIVATIONS)
    evaluator = Evaluator(problem)
    (block,) = blocks_of(evaluator, crossing_of(evaluator), [np.array([0, problem.op_count])]).unique
    told = np.arange(len(block.movable)) % 5 == 0
    labels = np.where(told & block.movable, Label.KEEP, Label.DROP).astype(np.int8)
    scratch = scratch_of(block.arrays)
    held, _, _, extra, _ = measure(block.arrays, block.outgoing, False, labels, scratch, np.zeros_like(told))
    search = BlockSearch(block, last=False)
    search.know(told[None, :])
    assert any(option.held_nbytes <= held and option.extra_ns <= extra for option in search.options())


def test_refining_for_one_budget_changes_no_plan_for_another() -> None:
    problem = build_problem(*random_graph(Random(5), 60), Scope.ACTIVATIONS)
    evaluator = Evaluator(problem)
    fresh, used = Chain(evaluator, (6, 20)), Chain(evaluator, (6, 20))
    low, high = sorted(budgets(problem, Random(seed)) for seed in (1, 2))
    used.refined(high, 1)
    first, second = (chain.refined(low, 1).best(low) for chain in (fresh, used))
    assert (first is None and second is None) or (first and second and first[0].tolist() == second[0].tolist())


@given(st.lists(st.tuples(*(st.integers(0, 9) for _ in range(3))), min_size=1, max_size=30))
def test_every_row_is_matched_by_a_chosen_one_when_there_is_room_for_all(drawn: list[tuple[int, int, int]]) -> None:
    rows = np.array(sorted(drawn, key=lambda row: (row[2], *row[:2])))
    chosen = np.zeros(len(rows), dtype=np.int64)
    taken = rows[chosen[: undominated(rows, chosen, 0, 1)]]
    assert all(np.any(np.all(taken <= row, axis=1)) for row in rows)
    assert len(np.unique(taken, axis=0)) == len(taken)


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
