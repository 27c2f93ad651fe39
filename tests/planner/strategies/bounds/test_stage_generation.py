"""Bounds found in integers: what CP-SAT answers, and stage programs that grow until their optimum is a plan."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from ogc_plan.planner.limits import NO_LIMITS
from ogc_plan.planner.problem import Problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.integers.cp_sat import Minimum, minimum
from ogc_plan.planner.strategies.integers.stage_generation import IntegerBound
from ogc_plan.planner.strategies.relaxation.linear_program import LinearProgram
from ogc_plan.planner.strategies.relaxation.stage_relaxation import StageRelaxation

from tests.graphs.layered_graphs import tight_layers
from tests.graphs.small_cases import Case, cases
from tests.oracles.small_programs import cheapest

NO_LIMIT = 1e6


def random_program(seed: int) -> LinearProgram:
    """Up to 8 variables and 6 rows that some point satisfies."""
    rng, program = Random(seed), LinearProgram()
    count = rng.randint(1, 8)
    point = [rng.randint(0, 1) for _ in range(count)]
    for _ in range(count):
        program.variable(rng.randint(0, 20))
    for _ in range(rng.randint(0, 6)):
        terms = [(rng.randint(-7, 9), variable) for variable in rng.sample(range(count), rng.randint(1, count))]
        program.at_least(sum(c * point[v] for c, v in terms) - rng.choice((0, 0, 1, 5)), terms)
    return program


def begun(problem: Problem, budget_nbytes: int, known_ns: int = 0) -> IntegerBound:
    """A bound that begins at the first backward."""
    return IntegerBound(StageRelaxation(problem), Evaluator(problem), budget_nbytes, (0,), known_ns)


def grown(case: Case, incumbent_ns: int, spare_ns: int = 0, work: float = NO_LIMIT) -> IntegerBound:
    """The bound of a case after some work."""
    bound = begun(case.problem, case.budget_nbytes)
    bound.run(incumbent_ns, spare_ns, work, NO_LIMITS)
    return bound


@pytest.mark.parametrize("spare", [0, 7])
def test_a_program_solved_is_bounded_by_its_cheapest_point_or_what_is_spared_below(spare: int) -> None:
    wrong = []
    for seed in range(400):
        program = random_program(seed)
        answer, least = minimum(program, spare, NO_LIMIT), cheapest(program)
        assert answer.point is not None
        assert least is not None
        cost = int(np.dot(answer.point, program.cost))
        if not answer.proven or not cost - spare <= answer.bound_ns <= least <= cost:
            wrong.append(seed)
    assert wrong == []


def test_a_program_that_cp_sat_calls_infeasible_proves_nothing() -> None:
    program = LinearProgram()
    program.at_least(2, [(1, program.variable(3))])
    found = minimum(program, 0, NO_LIMIT)
    assert (found.bound_ns, found.point, found.proven) == (0, None, False)


def test_a_search_cut_short_claims_no_more_than_the_optimum() -> None:
    above, open_ones = [], 0
    for case in cases():
        program = StageRelaxation(case.problem).program(case.budget_nbytes, case.stages).program
        answer = minimum(program, 0, 1e-6)
        open_ones += not answer.proven
        above += [case[1:]] if answer.bound_ns > case.exact_ns else []
    assert (above, open_ones > 5) == ([], True)


def test_costs_that_a_double_cannot_hold_are_not_asked_about() -> None:
    program = random_program(3)
    program.variable(1 << 60)
    assert minimum(program, 0, NO_LIMIT) == Minimum(0, None, False, 0.0)


@pytest.mark.parametrize("loose", [False, True])
def test_the_bound_never_exceeds_the_optimum(loose: bool) -> None:
    above = []
    for case in cases():
        incumbent = 4 * case.exact_ns + 50 if loose else case.exact_ns
        for spare in (0, 3):
            bound = grown(case, incumbent, spare)
            above += [case[1:]] if bound.bound_ns > case.exact_ns else []
    assert above == []


def test_from_stages_of_any_kind_the_bound_never_exceeds_the_optimum() -> None:
    above = []
    for seed, (problem, budget, exact, stages, _) in enumerate(cases()):
        moments = Random(seed).sample(range(-problem.op_count, 0), min(2, problem.op_count))
        bound = IntegerBound(StageRelaxation(problem), Evaluator(problem), budget, (*stages, *moments), 0)
        bound.run(exact + 10, 0, Random(seed).choice((1e-5, NO_LIMIT)), NO_LIMITS)
        above += [seed] if bound.bound_ns > exact else []
    assert above == []


def test_two_in_three_small_problems_are_closed() -> None:
    """Of those that the first backward alone leaves open."""
    met, all_open = 0, 0
    for case in cases():
        if StageRelaxation(case.problem).solve(case.budget_nbytes, (0,)).bound_ns < case.exact_ns:
            all_open += 1
            met += grown(case, case.exact_ns).bound_ns == case.exact_ns
    assert met > 2 / 3 * all_open


def test_the_same_work_gives_the_same_bound_and_stages() -> None:
    def found() -> tuple[int, tuple[int, ...]]:
        bound = begun(*tight_layers(3))
        bound.run(10**15, 0, 1.0, NO_LIMITS)
        return bound.bound_ns, bound.stages

    assert found() == found()
