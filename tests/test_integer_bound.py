"""Bounds found in integers: what CP-SAT answers, and stage programs that grow until their optimum is a plan."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from itertools import product
from random import Random

import numpy as np
import pytest
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.branch_and_bound import never
from ogc_plan.planner.strategies.cp_sat import Minimum, minimum
from ogc_plan.planner.strategies.evaluate import Evaluator
from ogc_plan.planner.strategies.integer_bound import IntegerBound
from ogc_plan.planner.strategies.linear_program import LinearProgram
from ogc_plan.planner.strategies.stage_lp import StageLP

from tests.layered_graphs import layered_graph
from tests.test_branch_and_bound import Case, cases

NO_LIMIT = 1e6


def random_program(seed: int) -> LinearProgram:
    """Up to 8 variables and 6 rows."""
    rng, program = Random(seed), LinearProgram()
    count = rng.randint(1, 8)
    for _ in range(count):
        program.variable(rng.randint(0, 20))
    for _ in range(rng.randint(0, 6)):
        used = rng.sample(range(count), rng.randint(1, count))
        program.at_least(rng.randint(-6, 8), [(rng.randint(-7, 9), variable) for variable in used])
    return program


def cheapest(program: LinearProgram, below: int) -> int:
    """The least cost of a point, by trying all; ``below`` where none costs less."""
    rows = list(zip(program.by_row(), program.lower, strict=True))
    costs = [
        sum(cost * bit for cost, bit in zip(program.cost, point, strict=True))
        for point in product((0, 1), repeat=len(program.cost))
        if all(sum(coefficient * point[variable] for coefficient, variable in row) >= low for row, low in rows)
    ]
    return min((cost for cost in costs if cost < below), default=below)


@cache
def layered(seed: int) -> tuple[Problem, int]:
    """A problem of some 60 ops in layers, and a tight budget."""
    graph, costs = layered_graph(Random(seed), 60, 4, unit=1000)
    problem = build_problem(graph, costs, Scope.ACTIVATIONS)
    evaluator = Evaluator(problem)
    whole = evaluator.evaluate(evaluator.labels(0)).peak_nbytes
    return problem, problem.floor_nbytes + (whole - problem.floor_nbytes) // 5


def grown(case: Case, incumbent_ns: int, work: float = NO_LIMIT) -> IntegerBound:
    """The bound of a case after some work, begun at the first backward."""
    problem, budget, _, _, _ = case
    bound = IntegerBound(StageLP(problem), Evaluator(problem), budget, (0,), 0)
    bound.run(incumbent_ns, work, never)
    return bound


def test_a_program_solved_has_the_cost_of_its_cheapest_point() -> None:
    wrong = []
    for seed in range(400):
        program, below = random_program(seed), Random(seed).choice((200, 30, 15))
        answer = minimum(program, below, NO_LIMIT, never)
        if not answer.proven or answer.bound_ns != cheapest(program, below):
            wrong.append(seed)
    assert wrong == []


def test_a_point_costs_what_is_proven_and_is_missing_where_none_is_below() -> None:
    wrong = []
    for seed in range(200):
        program = random_program(seed)
        answer = minimum(program, 30, NO_LIMIT, never)
        cost = 30 if answer.point is None else int(np.dot(answer.point, program.cost))
        wrong += [seed] if cost != answer.bound_ns else []
    assert wrong == []


def test_without_work_nothing_is_known() -> None:
    assert minimum(random_program(3), 30, 0.0, never) == Minimum(0, None, False, 0.0)


def test_a_search_cut_short_claims_no_more_than_the_optimum() -> None:
    above, open_ones = [], 0
    for case in cases():
        problem, budget, exact, stages, _ = case
        program = StageLP(problem).program(budget, stages).program
        answer = minimum(program, 3 * exact + 40, 1e-6, never)
        open_ones += not answer.proven
        above += [case[1:]] if answer.bound_ns > exact else []
    assert (above, open_ones > 5) == ([], True)


INTERRUPTED = """
import os, signal
from ogc_plan.planner.strategies.cp_sat import minimum
from ogc_plan.planner.strategies.stage_lp import StageLP
from tests.test_integer_bound import layered

seen, sent = [], []
signal.signal(signal.SIGINT, lambda *_: seen.append("seen"))

def late():
    if not sent:
        sent.append(os.kill(os.getpid(), signal.SIGINT))
    return bool(seen)

problem, budget = layered(1)
program = StageLP(problem).program(budget, range(0, len(problem.backward_order), 4)).program
minimum(program, sum(program.cost), 1e6, late)
os.kill(os.getpid(), signal.SIGINT)
print(*seen)
"""


def test_an_interrupt_reaches_python_while_a_program_is_solved_and_afterwards() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "seen seen\n")


def test_costs_that_a_double_cannot_hold_are_not_asked_about() -> None:
    assert minimum(random_program(3), 1 << 60, NO_LIMIT, never) == Minimum(0, None, False, 0.0)


def test_asked_to_stop_a_search_ends_before_it_is_done() -> None:
    problem, budget = layered(1)
    program = StageLP(problem).program(budget, range(0, len(problem.backward_order), 4)).program
    assert not minimum(program, sum(program.cost), NO_LIMIT, lambda: True).proven


@pytest.mark.parametrize("loose", [False, True])
def test_the_bound_never_exceeds_the_optimum(loose: bool) -> None:
    above = [case[1:] for case in cases() if grown(case, 4 * case[2] + 50 if loose else case[2]).bound_ns > case[2]]
    assert above == []


def test_stages_of_any_kind_to_begin_with_leave_it_a_bound() -> None:
    above = []
    for seed, (problem, budget, exact, stages, _) in enumerate(cases()):
        moments = Random(seed).sample(range(-problem.op_count, 0), min(2, problem.op_count))
        bound = IntegerBound(StageLP(problem), Evaluator(problem), budget, (*stages, *moments), 0)
        bound.run(exact + 10, Random(seed).choice((1e-5, NO_LIMIT)), never)
        above += [seed] if bound.bound_ns > exact else []
    assert above == []


def test_two_in_three_small_problems_are_closed() -> None:
    """Of those that the first backward alone leaves open."""
    met, all_open = 0, 0
    for case in cases():
        problem, budget, exact, _, _ = case
        if StageLP(problem).solve(budget, (0,)).bound_ns < exact:
            all_open += 1
            met += grown(case, exact).bound_ns == exact
    assert met > 2 / 3 * all_open


def test_a_bound_taken_up_again_is_that_of_the_same_work_at_once() -> None:
    differ = []
    for case in cases()[:30]:
        problem, budget, exact, _, _ = case
        bound = IntegerBound(StageLP(problem), Evaluator(problem), budget, (0,), 0)
        for _ in range(40):
            bound.run(exact + 1, 0.005, never)
        differ += [case[1:]] if bound.bound_ns != grown(case, exact + 1).bound_ns else []
    assert differ == []


def test_what_is_known_is_not_lost() -> None:
    problem, budget = layered(2)
    bound = IntegerBound(StageLP(problem), Evaluator(problem), budget, (0,), 5)
    bound.run(10**9, 0.0, never)
    assert bound.bound_ns == 5


def test_the_same_work_gives_the_same_bound_and_stages() -> None:
    def found() -> tuple[int, tuple[int, ...]]:
        problem, budget = layered(3)
        bound = IntegerBound(StageLP(problem), Evaluator(problem), budget, (0,), 0)
        bound.run(10**15, 1.0, never)
        return bound.bound_ns, bound.stages

    assert found() == found()


def test_stages_are_added_and_their_points_kept() -> None:
    problem, budget = layered(4)
    bound = IntegerBound(StageLP(problem), Evaluator(problem), budget, (0,), 0)
    bound.run(10**15, 2.0, never)
    assert (len(bound.stages) > 1, len(bound.points) > 0) == (True, True)
