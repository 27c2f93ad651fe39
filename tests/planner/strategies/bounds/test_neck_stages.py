"""Backwards that leave hardly any room, as stages to begin with."""

from __future__ import annotations

from dataclasses import replace

from ogc_plan.planner.graph import Storage
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.relaxation.stage_relaxation import StageRelaxation

from tests.graphs.builders import chain
from tests.graphs.small_cases import cases

BUDGET = 1_000


def with_large(ops: int, large: dict[int, int]) -> Problem:
    """A chain whose ops ``large`` write so many bytes: their backwards leave little of BUDGET."""
    graph, costs = chain(ops)
    storages = tuple(Storage(s.name, large.get(n, s.nbytes)) for n, s in enumerate(graph.storages))
    gradients = tuple(replace(g, nbytes=large.get(n, g.nbytes)) for n, g in enumerate(graph.gradients))
    return build_problem(replace(graph, storages=storages, gradients=gradients), costs, Scope.ACTIVATIONS)


def test_small_backwards_are_no_necks() -> None:
    assert StageRelaxation(with_large(40, {})).necks(BUDGET) == []


def test_a_backward_that_leaves_little_room_is_a_neck() -> None:
    necks = StageRelaxation(with_large(40, {10: 240, 11: 240})).necks(BUDGET)
    assert (len(necks), abs(necks[0] - (39 - 10)) <= 2) == (1, True)


def test_necks_far_apart_are_all_named_the_narrowest_first() -> None:
    necks = StageRelaxation(with_large(60, {10: 245, 11: 240, 40: 240, 41: 240})).necks(BUDGET)
    assert [round(neck, -1) for neck in necks] == [50, 20]


def test_with_necks_as_stages_the_bound_never_exceeds_the_optimum() -> None:
    above, with_necks = [], 0
    for case in cases():
        relaxed = StageRelaxation(case.problem)
        stages = {0, *relaxed.necks(case.budget_nbytes)}
        with_necks += len(stages) > 1
        above += [case[1:]] if relaxed.solve(case.budget_nbytes, sorted(stages)).bound_ns > case.exact_ns else []
    assert (above, with_necks > 10) == ([], True)
