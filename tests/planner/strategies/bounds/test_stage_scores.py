"""What one more stage would tell at once: the rise of the whole program with all that is alive at its stages fixed."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from random import Random

import numpy as np
from ogc_plan.planner.strategies.integers.cp_sat import minimum
from ogc_plan.planner.strategies.integers.stage_scores import StageScores
from ogc_plan.planner.strategies.relaxation.linear_program import Floats
from ogc_plan.planner.strategies.relaxation.stage_program import StageProgram
from ogc_plan.planner.strategies.relaxation.stage_relaxation import StageRelaxation

from tests.graphs.layered_graphs import tight_layers
from tests.graphs.small_cases import Case, cases

NO_LIMIT = 1e6
Known = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]
Optimum = tuple[Case, Random, StageRelaxation, Known, StageProgram, Floats]


def optima() -> Iterator[Optimum]:
    """Cases with one or two stages and, for some, moments of recomputations, and their optima."""
    for seed, case in enumerate(cases()):
        rng, relaxed, backwards = Random(seed), StageRelaxation(case.problem), range(len(case.problem.backward_order))
        stages = tuple(sorted({0, rng.choice(backwards)}))
        moments = [(q, op) for q in backwards[1:] for op in range(case.problem.op_count)]
        recomputations = tuple(rng.sample(moments, min(6, len(moments)))) if seed % 2 else ()
        staged = relaxed.program(case.budget_nbytes, stages, recomputations)
        found = minimum(staged.program, 0, NO_LIMIT)
        assert found.point is not None
        yield case, rng, relaxed, (stages, recomputations), staged, found.point


def worth(optimum: Optimum) -> StageScores:
    case, _, relaxed, _, staged, point = optimum
    return StageScores(relaxed, staged, case.budget_nbytes, point)


def rise_of_all(optimum: Optimum, stages: tuple[int, ...], recomputations: tuple[tuple[int, int], ...] = ()) -> float:
    """By what the whole program's cost rises with more in it, while what is alive at the stages before stays."""
    case, _, relaxed, known, staged, point = optimum
    more = relaxed.program(case.budget_nbytes, (*known[0], *stages), (*known[1], *recomputations))
    for q, stage in enumerate(staged.stages):
        for storage, variable in staged.alive[q].items():
            sign = 1 if point[variable] else -1
            more.program.at_least(max(0, sign), [(sign, more.alive[more.stages.index(stage)][storage])])
    found = minimum(more.program, 0, NO_LIMIT)
    return inf if found.point is None else found.bound_ns - float(np.dot(point, staged.program.cost))


def test_the_rise_of_a_backward_is_that_of_the_whole_program() -> None:
    wrong, risen = [], 0
    for seed, optimum in enumerate(optima()):
        stages = optimum[3][0]
        for stage in range(1, len(optimum[0].problem.backward_order)):
            if stage not in stages:
                told, whole = worth(optimum).rise(stage), rise_of_all(optimum, (stage,))
                wrong += [(seed, stage, told, whole)] if told != whole else []
                risen += told > 0
    assert (wrong, risen > 20) == ([], True)


def test_the_rise_of_a_re_run_is_that_of_the_whole_program() -> None:
    wrong = []
    for seed, optimum in enumerate(optima()):
        backwards = range(1, len(optimum[0].problem.backward_order))
        moments = [(q, op) for q in backwards for op in range(optimum[0].problem.op_count)]
        for moment in optimum[1].sample(moments, min(3, len(moments))):
            told, whole = worth(optimum).rise_of_recomputation(*moment), rise_of_all(optimum, (), (moment,))
            wrong += [(seed, moment, told, whole)] if told != whole else []
    assert wrong == []


def test_the_rise_of_a_moment_of_the_forward_is_that_of_the_whole_program() -> None:
    wrong, risen = [], 0
    for seed, optimum in enumerate(optima()):
        for stage in range(-optimum[0].problem.op_count, 0):
            told, whole = worth(optimum).rise(stage), rise_of_all(optimum, (stage,))
            wrong += [(seed, stage, told, whole)] if told != whole else []
            risen += told > 0
    assert (wrong, risen > 3) == ([], True)


def test_what_it_takes_is_counted() -> None:
    problem, budget = tight_layers(1)
    relaxed = StageRelaxation(problem)
    staged = relaxed.program(budget, (0, 20))
    found = minimum(staged.program, 0, NO_LIMIT)
    assert found.point is not None
    told = StageScores(relaxed, staged, budget, found.point)
    told.rise(10)
    assert 0 < told.work < found.work
