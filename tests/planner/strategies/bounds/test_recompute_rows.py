"""Moments of recomputations in the stage program: bounds that hold for every plan, and what they see."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.integers.cp_sat import minimum
from ogc_plan.planner.strategies.relaxation.certificate import certified_bound
from ogc_plan.planner.strategies.relaxation.linear_program import solve
from ogc_plan.planner.strategies.relaxation.recompute_rows import add_recompute_stage
from ogc_plan.planner.strategies.relaxation.stage_program import Recomputation, StageProgram
from ogc_plan.planner.strategies.relaxation.stage_relaxation import StageRelaxation

from tests.graphs.builders import SMALL_SIZES, linear, random_graph
from tests.graphs.layered_graphs import layered_graph
from tests.oracles.brute import minimum_peak, minimum_recompute_ns

NO_LIMIT = 1e6
Reruns = tuple[tuple[int, int], ...]


def optimum_ns(problem: Problem, budget: int, stages: tuple[int, ...], recomputations: Reruns) -> int:
    """The cheapest 0/1 point."""
    found = minimum(StageRelaxation(problem).program(budget, stages, recomputations).program, 0, NO_LIMIT)
    assert found.proven
    return found.bound_ns


def small_problem(seed: int) -> tuple[Random, Problem, int]:
    """A problem of few ops and a tight budget."""
    rng = Random(seed)
    if seed % 2:
        graph, costs = random_graph(rng, rng.randint(4, 7), sizes=SMALL_SIZES)
    else:
        graph, costs = layered_graph(rng, rng.randint(4, 8), 3)
    problem = build_problem(graph, costs, rng.choice(list(Scope)))
    return rng, problem, minimum_peak(problem) + rng.choice((0, 0, 1, rng.randint(0, 10)))


def everywhere(problem: Problem) -> Reruns:
    """All moments of recomputations."""
    return tuple((q, op) for q in range(1, len(problem.backward_order)) for op in range(problem.op_count))


@pytest.mark.parametrize("whole", [False, True])
def test_no_plan_beats_the_bound_of_any_moments_of_re_runs(whole: bool) -> None:
    beaten = []
    for seed in range(64_000, 64_060):
        rng, problem, budget = small_problem(seed)
        exact = minimum_recompute_ns(problem, budget)
        assert exact is not None
        backwards = range(len(problem.backward_order))
        if not backwards:
            continue
        stages = tuple(rng.sample(backwards, rng.randint(0, len(backwards))))
        found = everywhere(problem)
        recomputations = found if whole else tuple(rng.sample(found, min(len(found), 4)))
        program = StageRelaxation(problem).program(budget, stages, recomputations).program
        relaxed = certified_bound(program, solve(program).dual)
        beaten += [seed] if max(relaxed, minimum(program, 0, NO_LIMIT).bound_ns) > exact else []
    assert beaten == []


def row() -> Problem:
    """Each op reads the value before; the backwards read the values that the ops made."""
    graph, costs = linear(((), (0,), (1,), (2,), (3,)), (1, 20, 10, 20, 1), saved=(0, 1, 2, 3, 4))
    return build_problem(graph, costs, Scope.ACTIVATIONS)


def test_a_value_made_from_a_wide_one_again_is_not_held_beside_it_though_no_stage_sees_them_together() -> None:
    problem = row()
    budget, stages = minimum_peak(problem), range(-5, 5)
    without, fork = (optimum_ns(problem, budget, tuple(stages), recomputations) for recomputations in ((), ((2, 2),)))
    assert (without, fork, minimum_recompute_ns(problem, budget)) == (21, 28, 28)


def test_with_moments_more_small_problems_are_settled_than_with_all_stages_alone() -> None:
    alone = fork = 0
    for seed in range(64_000, 64_100):
        _, problem, budget = small_problem(seed)
        stages = tuple(range(-problem.op_count, len(problem.backward_order)))
        exact = minimum_recompute_ns(problem, budget)
        if problem.backward_order:
            alone += optimum_ns(problem, budget, stages, ()) == exact
            fork += optimum_ns(problem, budget, stages, everywhere(problem)) == exact
    assert fork > alone


def rows_of_a_moment(problem: Problem) -> tuple[StageProgram, Recomputation, list[tuple[list[tuple[int, int]], int]]]:
    """The program of the third op's run before the backward at 2, and its rows."""
    staged = StageRelaxation(problem).program(100, (0, 1, 2), ((2, 2),))
    return staged, staged.recomputations[0], list(zip(staged.program.by_row(), staged.program.lower, strict=True))


def test_what_an_op_reads_and_writes_is_alive_while_it_runs() -> None:
    staged, moment, rows = rows_of_a_moment(row())
    assert all(([(1, moment.held[value]), (-1, staged.runs[1][2])], 0) in rows for value in (1, 2))


def test_what_is_alive_then_was_so_at_the_stage_before_or_was_made_since() -> None:
    staged, moment, rows = rows_of_a_moment(row())
    assert ([(1, staged.alive[1][1]), (1, moment.sooner[1]), (-1, moment.held[1])], 0) in rows


def test_the_generator_state_of_the_op_needs_room_beside_it() -> None:
    plain = row()
    ops = list(plain.graph.ops)
    ops[2] = replace(ops[2], random_state_nbytes=3)
    random = build_problem(replace(plain.graph, ops=tuple(ops)), plain.costs, Scope.ACTIVATIONS)
    plain_rows, random_rows = rows_of_a_moment(plain)[2], rows_of_a_moment(random)[2]
    assert random_rows[-1][1] - plain_rows[-1][1] == 3


def test_an_op_that_the_interval_cannot_run_has_no_moment() -> None:
    problem = row()
    relaxed = StageRelaxation(problem)
    staged = relaxed.program(100, (0, 1))
    before = len(staged.program.lower)
    add_recompute_stage(relaxed, staged, 100, 4, 4)
    add_recompute_stage(relaxed, staged, 100, 0, 1)  # no interval ends with the first backward
    assert (len(staged.program.lower), staged.recomputations) == (before, [])


def test_an_op_that_does_not_fit_beside_what_is_always_there_is_not_run_again() -> None:
    relaxed = StageRelaxation(row())
    staged = relaxed.program(100, (0,))
    run = staged.runs[0][2]
    add_recompute_stage(relaxed, staged, -1, 1, 2)
    rows = zip(staged.program.by_row(), staged.program.lower, strict=True)
    assert ([(-1, run)], 0) in list(rows)


def test_a_second_run_in_an_interval_is_paid_once_whatever_moments_it_is_before_and_after() -> None:
    problem = row()
    relaxed = StageRelaxation(problem)
    staged = relaxed.program(100, (0,))
    before = sum(staged.program.cost)
    for op in staged.runs[0]:
        add_recompute_stage(relaxed, staged, 100, 1, op)
    assert sum(staged.program.cost) - before == sum(int(problem.forward_ns[op]) for op in staged.runs[0])
