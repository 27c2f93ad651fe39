"""The problem that strategies see: its gradient bytes, its peaks and its floor agree with the replay."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.schedule import StepKind, lower
from ogc_plan.planner.simulate import Timeline, simulate
from ogc_plan.planner.solution import Decisions
from ogc_plan.planner.training_graph import (
    BackwardOp,
    Gradient,
    GradientEdge,
    GradientSum,
    Stationary,
)

from tests.graphs.builders import chain, diamond, keep_all, random_decisions, random_graph

SCOPES = pytest.mark.parametrize("scope", list(Scope), ids=[scope.value for scope in Scope])


def bytes_of(timeline: Timeline, scope: Scope) -> tuple[int, ...]:
    return timeline.total_nbytes if scope is Scope.TOTAL else timeline.activation_nbytes


def peaks_from_problem(problem: Problem, decisions: Decisions) -> list[int]:
    """The peak of every computation: constants of the problem plus the storages alive, found by looking ahead."""
    graph, sequence = problem.graph, decisions.sequence
    reads = [graph.ops[e].reads if e >= 0 else graph.ops[~e].backward.reads for e in sequence]  # type: ignore[union-attr]
    writes = [graph.ops[e].writes if e >= 0 else () for e in sequence]

    def next_event(storage: int, start: int) -> str:
        for n in range(start, len(sequence)):
            if storage in reads[n]:
                return "read"
            if storage in writes[n]:
                return "written"
        return "nothing"

    peaks, alive = [], set[int]()
    forwards, backwards = 0, 0
    for n, entry in enumerate(sequence):
        recomputed = entry >= 0 and entry in sequence[:n]
        states = sum(
            op.random_state_nbytes
            for i, op in enumerate(graph.ops)
            if sequence.count(i) > 1
            and i in sequence[: n + 1]
            and (i in sequence[n + 1 :] or (i == entry and recomputed))
        )
        if entry < 0:
            constant = int(problem.during_nbytes[backwards])
            backwards += 1
        else:
            constant = problem.costs[entry].forward_workspace_nbytes
            started = forwards == len(graph.ops) and backwards < len(problem.backward_order)
            constant += int(problem.between_nbytes[backwards]) if started else problem.base_nbytes
            forwards += not recomputed
            constant += sum(int(problem.nbytes[s]) for s in writes[n] if s in alive)  # duplicates
            alive.update(writes[n])
        peaks.append(constant + states + sum(int(problem.nbytes[s]) for s in alive))
        alive = {s for s in alive if s in problem.pinned or next_event(s, n + 1) == "read"}
    return peaks


@SCOPES
def test_keep_all_peaks_follow_from_the_problem(scope: Scope) -> None:
    for seed in range(30_000, 30_080):
        rng = Random(seed)
        graph, costs = random_graph(rng, rng.randint(1, 40))
        schedule = lower(graph, keep_all(graph))
        replayed = bytes_of(simulate(graph, costs, schedule), scope)
        computed = [n for n, step in zip(replayed, schedule, strict=True) if step.kind is not StepKind.FREE]
        assert peaks_from_problem(build_problem(graph, costs, scope), keep_all(graph)) == computed, seed


@SCOPES
def test_peaks_with_recomputations_follow_from_the_problem(scope: Scope) -> None:
    for seed in range(31_000, 31_060):
        rng = Random(seed)
        graph, costs = random_graph(rng, rng.randint(1, 12))
        decisions = trimmed(random_decisions(rng, graph))
        replayed = simulate(graph, costs, lower(graph, decisions))
        steps = zip(bytes_of(replayed, scope), lower(graph, decisions), strict=True)
        computed = [n for n, step in steps if step.kind is not StepKind.FREE]
        assert peaks_from_problem(build_problem(graph, costs, scope), decisions) == computed, seed


def trimmed(decisions: Decisions) -> Decisions:
    """Without recomputations after the last backward, where the problem has no constants: nothing needs them."""
    sequence = list(decisions.sequence)
    while min(sequence) < 0 <= sequence[-1]:
        sequence.pop()
    return Decisions(tuple(sequence))


@SCOPES
def test_floor_is_never_above_a_replayed_peak(scope: Scope) -> None:
    for seed in range(32_000, 32_150):
        rng = Random(seed)
        graph, costs = random_graph(rng, rng.randint(1, 40))
        timeline = simulate(graph, costs, lower(graph, random_decisions(rng, graph)))
        assert build_problem(graph, costs, scope).floor_nbytes <= max(bytes_of(timeline, scope)), seed


@SCOPES
def test_floor_of_a_chain_is_its_widest_step(scope: Scope) -> None:
    graph, costs = chain(5, nbytes=10, stationary=Stationary(parameter_nbytes=1000))
    # the backward of op 3 holds its input and output, the output of the model and two gradients
    assert build_problem(graph, costs, scope).floor_nbytes == 50 + (1000 if scope is Scope.TOTAL else 0)


def test_floor_counts_what_cannot_be_made_again_and_is_still_read() -> None:
    graph, costs = chain(8, nbytes=10)
    once = replace(graph, ops=tuple(replace(op, once=i in (1, 2, 3)) for i, op in enumerate(graph.ops)))
    # the backward of op 6 holds its input and output, the output of the model, two gradients and t1 to t3
    assert build_problem(once, costs, Scope.ACTIVATIONS).floor_nbytes == 50 + 30


def test_gradient_bytes_of_a_diamond_share_aliases_and_count_the_fan_in_sum() -> None:
    graph, costs = diamond((10, 20, 30, 40))
    problem = build_problem(graph, costs, Scope.ACTIVATIONS)
    # add: both gradients are its own; right: 40 shared, 10 new; left: 40 + 10 + 10, then a sum; top: parameter free
    assert (problem.during_nbytes.tolist(), problem.between_nbytes.tolist()) == ([40, 50, 60, 10], [40, 40, 50, 10])


def test_gradient_bytes_of_sums_spelled_out() -> None:
    graph, costs = chain(3, nbytes=10)
    taken = [replace(op, backward=op.backward and replace(op.backward, gives=())) for op in graph.ops]
    last = replace(taken[2], backward=BackwardOp((), (2,), (GradientEdge(1),), (GradientSum(3, ()),)))
    middle = replace(taken[1], backward=BackwardOp((), (1, 2), (GradientEdge(0),), (GradientSum(4, (0, 3)),)))
    gradients = (*graph.gradients, Gradient("copy", 100), Gradient("sum", 1000, parameter=True))
    problem = build_problem(replace(graph, ops=(taken[0], middle, last), gradients=gradients), costs, Scope.TOTAL)
    # op 2: its seed, its gift and a copy; op 1 takes the seed too: it goes, and the sum holds 10 + 100 + 1000;
    # op 0 takes one of the operands, which lives until then.
    assert (problem.during_nbytes.tolist(), problem.between_nbytes.tolist()) == ([120, 1110, 1010], [10, 120, 1010])


def test_what_an_op_makes_that_runs_only_once_is_kept_whatever_the_user_asks() -> None:
    graph, costs = chain(3)
    graph = replace(graph, ops=(graph.ops[0], replace(graph.ops[1], once=True), graph.ops[2]))
    problem = build_problem(graph, costs, Scope.TOTAL, keep=frozenset({0}), recompute=frozenset({1}))
    assert problem.keep == {0, 1}


def test_parameter_gradients_count_in_the_total_only() -> None:
    graph, costs = chain(2, nbytes=10, parameter_nbytes=7)
    total, activations = (build_problem(graph, costs, scope).during_nbytes.tolist() for scope in Scope)
    assert (total, activations) == ([27, 24], [20, 10])


def test_partial_sum_of_a_parameter_gradient_counts_as_activation() -> None:
    for seed in range(33_000, 33_080):
        rng = Random(seed)
        graph, costs = random_graph(rng, 8)
        costs = tuple(replace(cost, backward_activation_workspace_nbytes=None) for cost in costs)
        total, part = (build_problem(graph, costs, scope) for scope in Scope)
        difference = total.during_nbytes - part.during_nbytes - graph.stationary.total_nbytes
        finished = sum(g.nbytes for g in graph.gradients if g.parameter)
        assert (difference >= 0).all(), seed
        assert (difference <= finished).all(), seed


def test_times_are_those_of_a_step_that_recomputes_nothing() -> None:
    for seed in range(34_000, 34_050):
        rng = Random(seed)
        graph, costs = random_graph(rng, 12)
        timeline = simulate(graph, costs, lower(graph, keep_all(graph)))
        assert (build_problem(graph, costs, Scope.TOTAL).store_all_ns, 0) == (timeline.time_ns, timeline.recompute_ns)
