"""Linear programs: duals prove no more than the optimum, in exact arithmetic, also where a solve is cut short."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from ogc_plan.planner.limits import NO_LIMITS, Limits
from ogc_plan.planner.strategies.relaxation.certificate import Certifier, certified_bound
from ogc_plan.planner.strategies.relaxation.linear_program import LinearProgram, solve
from ogc_plan.planner.strategies.relaxation.stage_relaxation import StageRelaxation

from tests.graphs.small_cases import cases
from tests.oracles.small_programs import cheapest


def rows(seed: int) -> LinearProgram:
    """A random program of up to 8 variables."""
    rng = Random(seed)
    program = LinearProgram()
    count = rng.randint(3, 8)
    for _ in range(count):
        program.variable(rng.randint(0, 9))
    for _ in range(rng.randint(2, 8)):
        chosen = rng.sample(range(count), rng.randint(1, count))
        program.at_least(rng.randint(-6, 4), [(rng.choice((-5, -2, -1, 1, 1, 3)), v) for v in chosen])
    return program


@pytest.mark.parametrize("limits", [Limits(stop=lambda: True), NO_LIMITS.with_deadline(0.0)])
def test_the_duals_of_a_program_cut_short_bound_no_more_than_the_optimum(limits: Limits) -> None:
    above = []
    for case in cases()[:20]:
        program = StageRelaxation(case.problem).program(case.budget_nbytes, case.stages).program
        above += [case] if certified_bound(program, solve(program, limits).dual) > case.exact_ns else []
    assert above == []


@pytest.mark.parametrize("arbitrary", [False, True])
def test_no_duals_prove_more_than_the_cheapest_point_costs(arbitrary: bool) -> None:
    above = []
    for seed in range(300):
        program, rng = rows(seed), np.random.default_rng(seed)
        dual = rng.random(len(program.lower)) * 5 if arbitrary else solve(program).dual
        least = cheapest(program)
        above += [seed] if least is not None and certified_bound(program, dual) > least else []
    assert above == []


@pytest.mark.parametrize("scale", [1, 10**9, 10**16])
def test_machine_integers_and_long_ones_certify_the_same(scale: int) -> None:
    rng = np.random.default_rng(0)
    program = LinearProgram()
    for _ in range(12):
        program.variable(int(rng.integers(0, 10**6)))
    for _ in range(9):
        program.at_least(int(rng.integers(-5, 5)) * scale, [(int(rng.integers(-9, 9)) * scale, v) for v in range(12)])
    dual = rng.random(9) * 1000 / scale
    whole, part = np.floor(dual).astype(np.int64), np.floor(dual % 1 * 2**44).astype(np.int64)
    certifier = Certifier(program)
    slow = certifier._reduced_slowly(whole, part)
    assert [list(map(int, got)) for got in certifier._reduced(whole, part)] == [list(map(int, s)) for s in slow]
