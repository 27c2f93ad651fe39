"""Bounds found in integers: what CP-SAT answers, and stage programs that grow until their optimum is a plan."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from ogc_plan.planner.problem import Problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.integers import cp_sat
from ogc_plan.planner.strategies.integers import stage_generation as integer_bound
from ogc_plan.planner.strategies.integers.cp_sat import Minimum, minimum, never
from ogc_plan.planner.strategies.integers.interval_rows import ThroughRows
from ogc_plan.planner.strategies.integers.stage_generation import IntegerBound
from ogc_plan.planner.strategies.integers.stage_scores import StageScores
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


def begun(problem: Problem, budget_nbytes: int, known_ns: int = 0, *, chooses: bool = False) -> IntegerBound:
    """A bound that begins at the first backward."""
    return IntegerBound(StageRelaxation(problem), Evaluator(problem), budget_nbytes, (0,), known_ns, chooses=chooses)


def grown(
    case: Case, incumbent_ns: int, spare_ns: int = 0, work: float = NO_LIMIT, *, chooses: bool = False
) -> IntegerBound:
    """The bound of a case after some work."""
    bound = begun(case.problem, case.budget_nbytes, chooses=chooses)
    bound.run(incumbent_ns, spare_ns, work, never)
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


@pytest.mark.parametrize(("threshold", "lazily"), [(2, False), (3, True)])
def test_only_small_programs_have_their_rows_added_to_the_relaxation_as_they_are_broken(
    threshold: int, lazily: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    solving = cp_sat._solve

    def solve(solver: Any, *rest: Any) -> None:
        told.append(solver.parameters.add_lp_constraints_lazily)
        solving(solver, *rest)

    monkeypatch.setattr(cp_sat, "_solve", solve)
    monkeypatch.setattr(cp_sat, "_LAZY_VARIABLES", threshold)
    program = LinearProgram()
    program.at_least(1, [(1, program.variable(cost)) for cost in (3, 4, 5)])
    minimum(program, 0, NO_LIMIT)
    assert told == [lazily]


def test_with_all_rows_in_the_relaxation_from_the_start_the_bound_never_exceeds_the_optimum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cp_sat, "_LAZY_VARIABLES", 0)
    assert [case[1:] for case in cases() if grown(case, 4 * case.exact_ns + 50).bound_ns > case.exact_ns] == []


def test_a_program_that_cp_sat_calls_infeasible_proves_nothing() -> None:
    program = LinearProgram()
    program.at_least(2, [(1, program.variable(3))])
    found = minimum(program, 0, NO_LIMIT)
    assert (found.bound_ns, found.point, found.proven) == (0, None, False)


def test_an_answer_that_breaks_a_row_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    program = LinearProgram()
    program.at_least(1, [(1, program.variable(3))])
    monkeypatch.setattr(cp_sat, "_add_row", lambda *_: None)  # the solver is not told of the row
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


INTERRUPTED = """
import os, signal
from ogc_plan.planner.strategies.cp_sat import minimum
from ogc_plan.planner.strategies.stage_lp import StageLP
from ogc_plan.planner.strategies.stage_worth import StageWorth
from ogc_plan.planner.strategies.through_rows import ThroughRows
from tests.layered_graphs import tight_layers

seen, sent = [], []
signal.signal(signal.SIGINT, lambda *_: seen.append("seen"))

def late():
    if not sent:
        sent.append(os.kill(os.getpid(), signal.SIGINT))
    return bool(seen)

problem, budget = tight_layers(1)
program = StageLP(problem).program(budget, range(0, len(problem.backward_order), 4)).program
minimum(program, 0, 1e6, late)
os.kill(os.getpid(), signal.SIGINT)
print(*seen)
"""


def test_an_interrupt_reaches_python_while_a_program_is_solved_and_afterwards() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "seen seen\n")


def test_costs_that_a_double_cannot_hold_are_not_asked_about() -> None:
    program = random_program(3)
    program.variable(1 << 60)
    assert minimum(program, 0, NO_LIMIT) == Minimum(0, None, False, 0.0)


def test_asked_to_stop_a_search_ends_before_it_is_done() -> None:
    problem, budget = tight_layers(1)
    program = StageRelaxation(problem).program(budget, range(0, len(problem.backward_order), 4)).program
    assert not minimum(program, 0, NO_LIMIT, lambda: True).proven


@pytest.mark.parametrize("chooses", [False, True])
@pytest.mark.parametrize("loose", [False, True])
def test_the_bound_never_exceeds_the_optimum(loose: bool, chooses: bool) -> None:
    above = []
    for case in cases():
        incumbent = 4 * case.exact_ns + 50 if loose else case.exact_ns
        for spare in (0, 3):
            bound = grown(case, incumbent, spare, chooses=chooses)
            above += [case[1:]] if bound.bound_ns > case.exact_ns else []
    assert above == []


def test_with_chosen_stages_the_same_work_raises_bounds_further() -> None:
    def raised(chooses: bool) -> int:
        bounds = [begun(*tight_layers(seed), chooses=chooses) for seed in range(1, 6)]
        for bound in bounds:
            bound.run(10**15, 0, 1.0, never)
        return sum(bound.bound_ns for bound in bounds)

    assert raised(chooses=True) > raised(chooses=False)


def test_where_it_chooses_it_begins_with_the_first_backward_alone() -> None:
    problem, budget = tight_layers(1)
    bound = IntegerBound(StageRelaxation(problem), Evaluator(problem), budget, (3, 7), 0, chooses=True)
    assert bound.stages == (0,)


def test_a_moment_at_which_something_runs_again_is_chosen_where_that_overruns_the_budget() -> None:
    found = [grown(case, 4 * case.exact_ns + 50, chooses=True).recomputations for case in cases()]
    assert any(found)


def test_of_the_moments_that_overrun_the_one_that_raises_the_cost_most_becomes_a_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, budget = tight_layers(1)
    bound = begun(problem, budget, chooses=True)
    monkeypatch.setattr(bound, "_overruns", lambda *_: {5: 9, 7: 8, 9: 7})
    monkeypatch.setattr(bound, "_reruns", lambda *_: {})
    monkeypatch.setattr(StageScores, "rise", lambda _, stage: {5: 1.0, 7: 1.0, 9: 3.0}[stage])
    bound._grown(StageRelaxation(problem).solve(budget, (0,)), np.zeros(0))
    assert bound.stages == (0, 9)


def test_what_a_place_that_failed_would_raise_is_not_asked_while_others_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trials, asked = Trials(monkeypatch), list[int]()

    def rise(_: StageScores, stage: int) -> float:
        asked.append(stage)
        return float(stage)

    monkeypatch.setattr(StageScores, "rise", rise)
    assert trials.bound._choice is not None
    trials.bound._choice.failed[9] = Minimum(0, None, False, 6.0)
    trials.run(4.0)
    assert asked == [5]


class Trials:
    """A bound on trial with stages 9 and 5, and what CP-SAT is asked: by stages, and how much work it is given.

    ``answers`` to the programs after the first; none for one that takes all the work it is given in vain.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: tuple[Minimum | None, ...] = ()) -> None:
        problem, budget = tight_layers(1)
        self.bound = begun(problem, budget, chooses=True)
        self.asked: list[tuple[tuple[int, ...], float]] = []
        self._first = minimum(StageRelaxation(problem).program(budget, (0,)).program, 0, NO_LIMIT)
        self._answers = [self._first, *answers]
        monkeypatch.setattr(self.bound, "_overruns", lambda *_: {5: 9, 9: 7})
        monkeypatch.setattr(self.bound, "_reruns", lambda *_: {})
        monkeypatch.setattr(StageScores, "rise", lambda _, stage: float(stage))
        monkeypatch.setattr(integer_bound, "minimum", self._solve)

    def _solve(self, program: LinearProgram, _: int, most_work: float, __: object) -> Minimum:
        self.asked.append((self.bound.stages, round(most_work, 2)))
        answer = self._answers.pop(0) if self._answers else None
        if answer is None:
            return Minimum(0, None, False, most_work)
        return replace(answer, point=np.zeros(len(program.cost)))

    def run(self, *works: float) -> list[tuple[tuple[int, ...], float]]:
        """What is asked when so much work is brought at a time."""
        for work in works:
            self.bound.run(10**15, 0, work, never)
        return self.asked


def test_a_stage_that_makes_the_program_too_hard_is_taken_back_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Trials(monkeypatch).run(12.5)
    assert asked[1:] == [((0, 9), 6.0), ((0, 5), 6.0)]


def test_where_all_stages_are_too_hard_the_first_is_tried_again_with_half_as_much_work_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Trials(monkeypatch).run(12.5, 8.0, 2.0)
    assert asked[1:] == [((0, 9), 6.0), ((0, 5), 6.0), ((0, 9), pytest.approx(10.49, abs=0.02))]


def test_where_all_stages_tell_little_the_one_that_tells_most_is_kept_and_not_solved_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Trials(monkeypatch, tuple(Minimum(bound_ns, None, True, 3.0) for bound_ns in (7, 6))).run(20.0)
    assert [stages for stages, _ in asked[1:4]] == [(0, 9), (0, 5), (0, 5, 9)]


def test_a_trial_that_got_too_little_work_is_tried_again_with_half_as_much_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Trials(monkeypatch).run(5.0, 1.0, 7.0)
    assert asked[1:3] == [((0, 9), 4.99), ((0, 9), pytest.approx(1.5 * 4.99, abs=0.01))]


def test_a_stage_that_replaces_another_does_not_wait_for_the_work_of_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Trials(monkeypatch).run(4.0, 7.0)
    assert [stages for stages, _ in asked[1:]] == [(0, 9), (0, 9), (0, 5)]


def test_the_worst_re_run_before_each_stage_is_a_moment_unless_it_is_one_already() -> None:
    problem, budget = tight_layers(1)
    bound = begun(problem, budget, chooses=True)
    bound.stages, again = (0, 2, 3), (3, 4, 5)
    sequence = np.array([*range(problem.op_count), -1, -2, *again, -3, *again, -4], dtype=np.int64)
    excess = np.zeros(len(sequence), dtype=np.int64)
    start = problem.op_count
    excess[start + 2 : start + 5] = (1, 5, 5)  # before the backward at 2
    excess[start + 6 : start + 9] = (0, 0, 7)  # before the one at 3
    first = bound._recomputations(sequence, excess)
    bound.recomputations = ((2, 4),)
    assert (first, bound._recomputations(sequence, excess)) == ({(2, 4): 5.0, (3, 5): 7.0}, {(2, 5): 5.0, (3, 5): 7.0})


def test_stages_of_any_kind_to_begin_with_leave_it_a_bound() -> None:
    above = []
    for seed, (problem, budget, exact, stages, _) in enumerate(cases()):
        moments = Random(seed).sample(range(-problem.op_count, 0), min(2, problem.op_count))
        bound = IntegerBound(StageRelaxation(problem), Evaluator(problem), budget, (*stages, *moments), 0)
        bound.run(exact + 10, 0, Random(seed).choice((1e-5, NO_LIMIT)), never)
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


def test_a_bound_taken_up_again_is_that_of_the_same_work_at_once() -> None:
    differ = []
    for case in cases()[:30]:
        bound = begun(case.problem, case.budget_nbytes)
        for _ in range(100):
            bound.run(case.exact_ns + 1, 0, 0.005, never)
        differ += [case[1:]] if bound.bound_ns != grown(case, case.exact_ns + 1).bound_ns else []
    assert differ == []


def test_what_is_known_is_not_lost() -> None:
    bound = begun(*tight_layers(2), known_ns=5)
    bound.run(10**9, 0, 0.0, never)
    assert bound.bound_ns == 5


@pytest.mark.parametrize("chooses", [False, True])
def test_the_same_work_gives_the_same_bound_and_stages(chooses: bool) -> None:
    def found() -> tuple[int, tuple[int, ...], tuple[tuple[int, int], ...]]:
        bound = begun(*tight_layers(3), chooses=chooses)
        bound.run(10**15, 0, 1.0, never)
        return bound.bound_ns, bound.stages, bound.recomputations

    assert found() == found()


def test_stages_are_added_and_their_points_kept() -> None:
    bound = begun(*tight_layers(4))
    bound.run(10**15, 0, 2.0, never)
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


def test_growing_ends_with_stages_of_the_forward_where_that_peaks() -> None:
    with_moments = [case for case in cases() if any(stage < 0 for stage in grown(case, case.exact_ns).stages)]
    assert len(with_moments) > 3


def test_a_point_that_is_not_proven_is_kept_for_rounding() -> None:
    bound = begun(*tight_layers(1))
    for _ in range(30):
        bound.run(10**15, 0, 0.05, never)
    assert len(bound.points) > len(bound.stages)


def test_a_program_that_was_not_solved_is_tried_again_only_with_half_as_much_work_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[float] = []

    def unsolved(_: LinearProgram, __: int, most_work: float, ___: object) -> Minimum:
        given.append(most_work)
        return Minimum(0, None, False, most_work)

    monkeypatch.setattr(integer_bound, "minimum", unsolved)
    bound = begun(*tight_layers(1))
    for work in (1.0, 0.4, 1.0, 1.0, 4.0):
        bound.run(10**15, 0, work, never)
    assert given == [1.0, 2.4, 4.0]


def closed() -> int:
    """Small problems whose optimum the bound meets."""
    return sum(grown(case, case.exact_ns).bound_ns == case.exact_ns for case in cases())


def test_rows_for_what_happens_between_stages_close_more(monkeypatch: pytest.MonkeyPatch) -> None:
    before = closed()
    monkeypatch.setattr(ThroughRows, "separate", lambda *_: [])
    assert closed() < before


def test_rows_for_what_happens_between_stages_are_not_looked_for_while_a_stage_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []

    def separate(*_: object) -> list[object]:
        asked.append(1)
        return []

    monkeypatch.setattr(ThroughRows, "separate", separate)
    monkeypatch.setattr(IntegerBound, "_grown", lambda *_: True)
    begun(*tight_layers(1)).run(10**15, 0, 0.5, never)
    assert asked == []


@pytest.mark.parametrize(
    ("over", "stages"),
    [
        ({7: 9, 5: 3}, (0, 5, 7)),
        ({5: 9, 7: 3}, (0, 5, 7)),
        ({5: 1}, (0, 4, 5)),
        ({6: 5, 40: 4}, (0, 5, 40)),
        ({6: 80, 40: 2}, (0, 5, 6)),
        ({25: 9, 45: 10}, (0, 5, 45)),
        ({25: 9, 45: 8}, (0, 5, 25)),
        ({}, (0, 5)),
    ],
)
def test_the_worst_step_weighed_by_its_distance_becomes_a_stage_or_else_the_step_before_one(
    over: dict[int, int], stages: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, budget = tight_layers(1)
    relaxed = StageRelaxation(problem)
    bound = IntegerBound(relaxed, Evaluator(problem), budget, (0, 5), 0)
    monkeypatch.setattr(bound, "_overruns", lambda *_: over)
    bound._grown(relaxed.solve(budget, (0, 5)), np.zeros(0))
    assert bound.stages == stages


def test_where_all_steps_that_overrun_are_stages_the_one_before_the_worst_becomes_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, budget = tight_layers(1)
    relaxed = StageRelaxation(problem)
    bound = IntegerBound(relaxed, Evaluator(problem), budget, (0, 5, 20), 0)
    monkeypatch.setattr(bound, "_overruns", lambda *_: {5: 1, 20: 9})
    bound._grown(relaxed.solve(budget, (0, 5, 20)), np.zeros(0))
    assert bound.stages == (0, 5, 19, 20)
