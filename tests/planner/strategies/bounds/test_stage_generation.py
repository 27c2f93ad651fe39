"""Bounds found in integers: what CP-SAT answers, and stage programs that grow until their optimum is a plan."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from ogc_plan.planner.limits import NO_LIMITS, Limits
from ogc_plan.planner.problem import Problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.integers.cp_sat import Minimum, minimum
from ogc_plan.planner.strategies.integers.stage_generation import IntegerBound
from ogc_plan.planner.strategies.relaxation.linear_program import LinearProgram
from ogc_plan.planner.strategies.relaxation.stage_relaxation import StageRelaxation
from ogc_plan.planner.strategies.retention.annealer import RetentionAnnealer

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


def test_without_work_nothing_is_known() -> None:
    assert minimum(random_program(3), 0, 0.0) == Minimum(0, None, False, 0.0)


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


def test_asked_to_stop_a_search_ends_before_it_is_done() -> None:
    problem, budget = tight_layers(1)
    program = StageRelaxation(problem).program(budget, range(0, len(problem.backward_order), 4)).program
    assert not minimum(program, 0, NO_LIMIT, Limits(stop=lambda: True)).proven


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


def test_work_in_pieces_gives_the_bound_of_the_same_work_at_once() -> None:
    differ = []
    for case in cases()[:30]:
        bound = begun(case.problem, case.budget_nbytes)
        for _ in range(100):
            bound.run(case.exact_ns + 1, 0, 0.005, NO_LIMITS)
        differ += [case[1:]] if bound.bound_ns != grown(case, case.exact_ns + 1).bound_ns else []
    assert differ == []


def test_a_known_bound_is_never_lowered() -> None:
    bound = begun(*tight_layers(2), known_ns=5)
    bound.run(10**9, 0, 0.0, NO_LIMITS)
    assert bound.bound_ns == 5


def test_the_same_work_gives_the_same_bound_and_stages() -> None:
    def found() -> tuple[int, tuple[int, ...]]:
        bound = begun(*tight_layers(3))
        bound.run(10**15, 0, 1.0, NO_LIMITS)
        return bound.bound_ns, bound.stages

    assert found() == found()


def test_stages_are_added_and_their_points_kept() -> None:
    bound = begun(*tight_layers(4))
    bound.run(10**15, 0, 2.0, NO_LIMITS)
    assert (len(bound.stages) > 1, len(bound.points) > 0) == (True, True)


def plan_of_the_last_point(case: Case) -> tuple[int, int]:
    """Bound and cost of a plan within the budget, without a plan known before; the cost is 0 where there is none."""
    bound = grown(case, 100 * case.exact_ns + 1000)
    if not bound.points:
        return bound.bound_ns, 0
    rounded = RetentionAnnealer(Evaluator(case.problem), 0).from_stages(bound.points[0], 0.5)
    assert rounded is not None
    return bound.bound_ns, rounded[1].recompute_ns if rounded[1].peak_nbytes <= case.budget_nbytes else 0


def test_the_last_optimum_of_three_in_five_small_problems_is_an_optimal_plan() -> None:
    """Of those where something must be computed again."""
    tight = [case for case in cases() if case.exact_ns > 0]
    optimal = sum(plan_of_the_last_point(case) == (case.exact_ns, case.exact_ns) for case in tight)
    assert optimal > 0.6 * len(tight)


def test_if_the_forward_peaks_its_moments_become_stages() -> None:
    with_moments = [case for case in cases() if any(stage < 0 for stage in grown(case, case.exact_ns).stages)]
    assert len(with_moments) > 3


def test_a_point_that_is_not_proven_is_kept_for_rounding() -> None:
    bound = begun(*tight_layers(1))
    for _ in range(30):
        bound.run(10**15, 0, 0.05, NO_LIMITS)
    assert len(bound.points) > len(bound.stages)
