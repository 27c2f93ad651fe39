"""The certified strategy: never above its budget, never wrongly infeasible, the same every time."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import Event

import pytest
from ogc_plan.planner.errors import BoundMismatchError
from ogc_plan.planner.limits import NO_LIMITS, Limits
from ogc_plan.planner.problem import Scope, build_problem
from ogc_plan.planner.solution import Decisions, Solution, Status
from ogc_plan.planner.strategies.optimal.effort import EFFORTS
from ogc_plan.planner.strategies.optimal.problem_cache import ProblemCache
from ogc_plan.planner.strategies.optimal.strategy import CHOSEN_CLASS, better, smallest_peak, solve
from ogc_plan.planner.strategies.relaxation.stage_relaxation import BOUND_CLASS
from ogc_plan.planner.training_graph import OpCost, TrainingGraph

from models.light import light_path
from tests.graphs.builders import chain
from tests.graphs.problems import between, chain_problem, keep_all_peak, layered_problem, random_problem
from tests.oracles.brute import minimum_peak, minimum_recompute_ns
from tests.oracles.replay import keeps_its_word, replayed


def test_its_replayed_peak_is_the_one_it_claims_and_within_the_budget() -> None:
    wrong = []
    for seed in range(100, 112):
        problem = random_problem(seed, 5, 50)
        budget = (solve(problem, effort="fast").peak_nbytes + keep_all_peak(problem)) // 2
        solution = solve(problem, budget, effort="fast")
        if solution.decisions is None or not keeps_its_word(problem, solution, budget):
            wrong.append(seed)
    assert wrong == []


def test_bound_and_plan_enclose_the_exact_optimum() -> None:
    wrong = []
    for seed in range(80_000, 80_100):
        problem = random_problem(seed, 2, 8)
        budget = minimum_peak(problem) + Random(seed).randint(0, 40)
        exact = minimum_recompute_ns(problem, budget)
        solution = solve(problem, budget, effort="fast")
        assert exact is not None
        beaten = solution.decisions is not None and solution.objective_ns < exact
        if beaten or solution.status is Status.INFEASIBLE or solution.bound_ns > exact:
            wrong.append(seed)
    assert wrong == []


def test_below_the_floor_it_says_infeasible_and_between_floor_and_reach_it_does_not() -> None:
    problem = random_problem(3, 4, 7)
    assert problem.floor_nbytes < minimum_peak(problem)
    answers = (solve(problem, problem.floor_nbytes - 1).status, solve(problem, problem.floor_nbytes).status)
    assert answers == (Status.INFEASIBLE, Status.UNKNOWN)


def test_a_budget_of_store_all_is_met_without_recomputation_and_called_optimal() -> None:
    problem = chain_problem(12)
    solution = solve(problem, keep_all_peak(problem))
    assert (solution.status, solution.objective_ns) == (Status.OPTIMAL, 0)


def test_what_an_unreachable_budget_calls_the_smallest_peak_has_a_plan() -> None:
    broken = []
    for seed in range(300, 312):
        problem = random_problem(seed, 8, 40)
        unknown = solve(problem, problem.floor_nbytes, effort="fast")
        if unknown.decisions is None:
            assert unknown.smallest_nbytes is not None
            if solve(problem, unknown.smallest_nbytes, effort="fast").decisions is None:
                broken.append(seed)
    assert broken == []


def test_an_expired_time_limit_still_gives_a_plan_or_says_it_stopped() -> None:
    assert solve(chain_problem(60, 100), 3000, limits=NO_LIMITS.with_deadline(0.0)).stopped_early


def test_storages_the_user_keeps_or_recomputes_are_obeyed() -> None:
    solution = solve(chain_problem(12, 100, keep=frozenset({4}), recompute=frozenset({5})), 1300)
    assert solution.decisions is not None
    assert [solution.decisions.sequence.count(op) for op in (4, 5)] == [1, 2]


def test_the_same_input_gives_the_same_plan_whatever_the_hash_seed(tmp_path: Path) -> None:
    plans = []
    for hash_seed in ("0", "4242"):
        path = tmp_path / f"plan{hash_seed}.json"
        command = [sys.executable, "-m", "ogc_plan.cli.main", str(light_path("squeezenet")), "--batch", "8"]
        command += ["--budget", "60%", "-q", "-o", str(path)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": hash_seed})
        plans.append(path.read_bytes())
    assert plans[0] == plans[1]


@pytest.mark.parametrize("effort", ["fast", "default"])
def test_the_same_effort_gives_the_same_plan_and_bound_twice(effort: str) -> None:
    problem = random_problem(140, 30, 40)
    first, second = (solve(problem, between(problem, 50), effort=effort) for _ in range(2))
    assert first == second


def test_asked_to_stop_at_any_moment_it_answers_with_what_it_has() -> None:
    problem = random_problem(141, 30, 40)
    budget, dishonest = between(problem, 50), []
    for calls in (0, 1, 5, 20):
        count = iter(range(calls))
        answer = solve(problem, budget, limits=Limits(stop=lambda left=count: next(left, None) is None))
        within = keeps_its_word(problem, answer, budget)
        if not (within and answer.stopped_early and answer.status is not Status.INFEASIBLE):
            dishonest.append(calls)
    assert dishonest == []


def test_a_plan_in_a_chosen_order_is_one_of_the_problem_as_given() -> None:
    chosen = []
    for seed in range(4):
        problem = layered_problem(seed, 30, 4, unit=100)
        answer = solve(problem, between(problem, 50))
        if answer.bound_class == CHOSEN_CLASS:
            chosen.append(replayed(problem, answer)[0] == answer.peak_nbytes)
    assert chosen
    assert all(chosen)


@pytest.mark.parametrize("budgeted", [True, False])
def test_a_step_without_ops_has_a_plan(budgeted: bool) -> None:
    graph = TrainingGraph((), (), (), (), ())
    assert solve(build_problem(graph, (), Scope.ACTIVATIONS), 0 if budgeted else None).decisions is not None


def test_a_step_whose_ops_take_no_time_is_planned() -> None:
    graph, costs = chain(12)
    problem = build_problem(graph, tuple(OpCost(0, 0) for _ in costs), Scope.ACTIVATIONS)
    assert solve(problem, keep_all_peak(problem) * 3 // 4).objective_ns == 0


def test_the_highest_effort_never_has_a_dearer_plan_than_the_default_one(monkeypatch: pytest.MonkeyPatch) -> None:
    little = replace(EFFORTS["high"], search=EFFORTS["fast"].search, bound=EFFORTS["fast"].bound)
    monkeypatch.setitem(EFFORTS, "high", little)  # whatever it finds by itself
    dearer = []
    for seed in (510, 511, 512):
        problem = random_problem(seed, 12, 24)
        budget = between(problem, 30)
        answers = [solve(problem, budget, effort=effort) for effort in ("default", "high")]
        default, high = ((answer.decisions is None, answer.objective_ns) for answer in answers)
        if high > default:
            dearer.append(seed)
    assert dearer == []


def test_a_plan_below_the_bound_of_another_answer_is_an_error() -> None:
    first = Solution(Status.FEASIBLE, "optimal", Decisions((0,)), 7, 5, BOUND_CLASS, 10)
    second = Solution(Status.OPTIMAL, "optimal", Decisions((0,)), 9, 9, BOUND_CLASS, 10)
    with pytest.raises(BoundMismatchError, match=r"a plan of 7 ns .* none takes less than 9 ns"):
        better(first, second, 10)


# the smallest peak


def test_the_same_problem_has_the_same_smallest_peak_asked_twice_or_anew_and_after_any_budget() -> None:
    problem = layered_problem(1, 40, 5)
    cache, used = ProblemCache(problem), ProblemCache(problem)
    solve(used, between(problem, 50))
    assert len({smallest_peak(asked) for asked in (cache, cache, problem, used)}) == 1


def test_other_backward_orders_lower_the_smallest_peak() -> None:
    problem = layered_problem(2, 60, 6)
    assert smallest_peak(problem) < smallest_peak(problem, effort="fast")


def test_a_stop_while_the_smallest_peak_is_searched_ends_it_with_a_plan() -> None:
    pressed, problem = Event(), layered_problem(2, 100, 8)
    limits = Limits(stop=pressed.is_set, progress=lambda *_: pressed.set())
    assert smallest_peak(problem, limits=limits) >= problem.floor_nbytes
