"""The certified strategy: never above its budget, never worse than another, never wrongly infeasible."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from ogc_plan.planner.errors import BoundMismatchError
from ogc_plan.planner.limits import NO_LIMITS, Limits
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.schedule import lower
from ogc_plan.planner.simulate import simulate
from ogc_plan.planner.solution import Decisions, Solution, Status
from ogc_plan.planner.strategies import STRATEGIES, strategy_named
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.optimal.alternate_orders import Reordered
from ogc_plan.planner.strategies.optimal.effort import EFFORTS
from ogc_plan.planner.strategies.optimal.problem_cache import ProblemCache
from ogc_plan.planner.strategies.optimal.solve_context import SolveContext
from ogc_plan.planner.strategies.optimal.strategy import CHOSEN_CLASS, better, solve
from ogc_plan.planner.strategies.orders.reordered_problem import default_orders
from ogc_plan.planner.strategies.relaxation.stage_relaxation import BOUND_CLASS
from ogc_plan.planner.training_graph import OpCost, TrainingGraph

from models.light import light_path
from tests.graphs.builders import SMALL_SIZES, chain, random_graph
from tests.graphs.layered_graphs import layered_graph
from tests.oracles.brute import minimum_peak, minimum_recompute_ns

OTHERS = sorted(set(STRATEGIES) - {"optimal"})


def random_problem(seed: int, low: int, high: int) -> Problem:
    rng = Random(seed)
    graph, costs = random_graph(rng, rng.randint(low, high), sizes=SMALL_SIZES if high <= 8 else None)
    return build_problem(graph, costs, rng.choice(list(Scope)))


def replayed_peak(problem: Problem, solution: Solution) -> int:
    assert solution.decisions is not None
    timeline = simulate(problem.graph, problem.costs, lower(problem.graph, solution.decisions))
    return timeline.peak_total_nbytes if problem.scope is Scope.TOTAL else timeline.peak_activation_nbytes


def test_its_replayed_peak_is_the_one_it_claims_and_within_the_budget() -> None:
    wrong = []
    for seed in range(100, 125):
        problem = random_problem(seed, 5, 50)
        smallest, whole = solve(problem, effort="fast").peak_nbytes, strategy_named("keep-all")(problem).peak_nbytes
        solution = solve(problem, (smallest + whole) // 2, effort="fast")
        if not replayed_peak(problem, solution) == solution.peak_nbytes <= (smallest + whole) // 2:
            wrong.append(seed)
    assert wrong == []


@pytest.mark.parametrize("first_seed", range(80_000, 80_300, 100))
def test_bound_and_plan_enclose_the_exact_optimum(first_seed: int) -> None:
    wrong = []
    for seed in range(first_seed, first_seed + 100):
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
    graph, costs = chain(12)
    problem = build_problem(graph, costs, Scope.ACTIVATIONS)
    solution = solve(problem, strategy_named("keep-all")(problem).peak_nbytes)
    assert (solution.status, solution.objective_ns) == (Status.OPTIMAL, 0)


def test_what_an_unreachable_budget_calls_the_smallest_peak_has_a_plan() -> None:
    broken = []
    for seed in range(300, 330):
        problem = random_problem(seed, 8, 40)
        unknown = solve(problem, problem.floor_nbytes, effort="fast")
        if unknown.decisions is None:
            assert unknown.smallest_nbytes is not None
            if solve(problem, unknown.smallest_nbytes, effort="fast").decisions is None:
                broken.append(seed)
    assert broken == []


def test_an_expired_time_limit_still_gives_a_plan_or_says_it_stopped() -> None:
    graph, costs = chain(60, nbytes=100)
    problem = build_problem(graph, costs, Scope.ACTIVATIONS)
    solution = solve(problem, 3000, limits=NO_LIMITS.with_deadline(0.0))
    assert solution.stopped_early


def test_storages_the_user_keeps_or_recomputes_are_obeyed() -> None:
    graph, costs = chain(12, nbytes=100)
    problem = build_problem(graph, costs, Scope.ACTIVATIONS, keep=frozenset({4}), recompute=frozenset({5}))
    solution = solve(problem, 1300)
    assert solution.decisions is not None
    runs = [solution.decisions.sequence.count(op) for op in (4, 5)]
    assert runs == [1, 2]


def test_the_same_input_gives_the_same_plan_whatever_the_hash_seed(tmp_path: Path) -> None:
    plans = []
    for hash_seed in ("0", "1", "4242"):
        path = tmp_path / f"plan{hash_seed}.json"
        command = [sys.executable, "-m", "ogc_plan.cli.main", str(light_path("squeezenet")), "--batch", "8"]
        command += ["--budget", "60%", "-q", "-o", str(path)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": hash_seed})
        plans.append(path.read_bytes())
    assert len(set(plans)) == 1


@pytest.mark.parametrize("effort", ["fast", "default"])
def test_the_same_effort_gives_the_same_plan_and_bound_twice(effort: str) -> None:
    problem = random_problem(140, 30, 40)
    budget = (problem.floor_nbytes + strategy_named("keep-all")(problem).peak_nbytes) // 2
    first, second = (solve(problem, budget, effort=effort) for _ in range(2))
    assert first == second


def test_asked_to_stop_at_any_moment_it_answers_with_what_it_has() -> None:
    problem = random_problem(141, 30, 40)
    budget = (problem.floor_nbytes + strategy_named("keep-all")(problem).peak_nbytes) // 2
    dishonest = []
    for calls in (0, 1, 2, 5, 20):
        count = iter(range(calls))
        answer = solve(problem, budget, limits=Limits(stop=lambda left=count: next(left, None) is None))
        within = answer.decisions is None or replayed_peak(problem, answer) == answer.peak_nbytes <= budget
        if not (within and answer.stopped_early and answer.status is not Status.INFEASIBLE):
            dishonest.append(calls)
    assert dishonest == []


@pytest.mark.parametrize("effort", ["fast", "default"])
def test_every_plan_of_a_cached_problem_is_within_its_budget(effort: str) -> None:
    problem = random_problem(142, 20, 30)
    cache, whole = ProblemCache(problem), strategy_named("keep-all")(problem).peak_nbytes
    broken = []
    for share in (90, 50, 20, 70):
        budget = problem.floor_nbytes + (whole - problem.floor_nbytes) * share // 100
        answer = solve(cache, budget, effort=effort)
        if answer.decisions is not None and not replayed_peak(problem, answer) == answer.peak_nbytes <= budget:
            broken.append(share)
    assert broken == []


def test_a_plan_in_a_chosen_order_is_one_of_the_problem_as_given() -> None:
    chosen = []
    for seed in range(4):
        graph, costs = layered_graph(Random(seed), 30, 4, unit=100)
        problem = build_problem(graph, costs, Scope.ACTIVATIONS)
        answer = solve(problem, (problem.floor_nbytes + strategy_named("keep-all")(problem).peak_nbytes) // 2)
        if answer.bound_class == CHOSEN_CLASS:
            chosen.append(replayed_peak(problem, answer) == answer.peak_nbytes)
    assert chosen
    assert all(chosen)


@pytest.mark.parametrize("budgeted", [True, False])
def test_a_step_without_ops_has_a_plan(budgeted: bool) -> None:
    graph = TrainingGraph((), (), (), (), ())
    assert solve(build_problem(graph, (), Scope.ACTIVATIONS), 0 if budgeted else None).decisions is not None


def test_a_step_whose_ops_take_no_time_is_planned() -> None:
    graph, costs = chain(12)
    problem = build_problem(graph, tuple(OpCost(0, 0) for _ in costs), Scope.ACTIVATIONS)
    budget = strategy_named("keep-all")(problem).peak_nbytes * 3 // 4
    assert solve(problem, budget).objective_ns == 0


def test_an_earlier_budget_changes_no_smallest_peak() -> None:
    problem = random_problem(6, 8, 40)
    whole = strategy_named("keep-all")(problem).peak_nbytes
    used = ProblemCache(problem)
    solve(used, (problem.floor_nbytes + whole) // 2)
    assert solve(used).objective_ns == solve(problem).objective_ns


def test_the_highest_effort_never_has_a_dearer_plan_than_the_default_one() -> None:
    dearer = []
    for seed in (510, 511, 512):
        problem = random_problem(seed, 12, 24)
        budget = (solve(problem).peak_nbytes + strategy_named("keep-all")(problem).peak_nbytes) // 2
        if solve(problem, budget, effort="high").objective_ns > solve(problem, budget).objective_ns:
            dearer.append(seed)
    assert dearer == []


def test_the_better_of_two_answers_has_the_higher_bound_of_both() -> None:
    first = Solution(Status.FEASIBLE, "optimal", Decisions((0,)), 7, 5, BOUND_CLASS, 10)
    second = Solution(Status.FEASIBLE, "optimal", Decisions((0,)), 9, 7, BOUND_CLASS, 10)
    assert better(first, second, 10) == replace(first, bound_ns=7, status=Status.OPTIMAL)


def test_of_two_answers_that_cost_the_same_the_better_one_has_the_higher_bound() -> None:
    first = Solution(Status.FEASIBLE, "optimal", Decisions((0,)), 7, 5, CHOSEN_CLASS, 10)
    assert better(first, replace(first, bound_ns=3), 10) == first


def test_a_plan_below_the_bound_of_the_other_answer_is_an_error() -> None:
    first = Solution(Status.FEASIBLE, "optimal", Decisions((0,)), 7, 5, BOUND_CLASS, 10)
    second = Solution(Status.OPTIMAL, "optimal", Decisions((0,)), 9, 9, BOUND_CLASS, 10)
    with pytest.raises(BoundMismatchError, match=r"a plan of 7 ns .* none takes less than 9 ns"):
        better(first, second, 10)


def test_without_a_budget_the_better_of_two_answers_is_the_one_of_the_lower_peak() -> None:
    first = Solution(Status.FEASIBLE, "optimal", Decisions((0,)), 7, 5, BOUND_CLASS, 10)
    second = Solution(Status.FEASIBLE, "optimal", Decisions((0,)), 9, 7, BOUND_CLASS, 8)
    assert better(first, second, None) == second


def test_a_plan_in_the_default_orders_after_all_is_cached_under_them() -> None:
    cache = ProblemCache(random_problem(5, 6, 6))
    problem, evaluator = cache.problem, cache.evaluator
    sequence = np.array(evaluator.decisions(evaluator.labels(Label.KEEP)).sequence)
    found = Reordered(default_orders(problem), evaluator, sequence, evaluator.evaluate_sequence(sequence))
    known = SolveContext(cache, NO_LIMITS, EFFORTS["default"], 0).known(found)
    assert (known.cache, known.orders) == (cache, None)
