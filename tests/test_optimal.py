"""The certified strategy: never above its budget, never worse than another, never wrongly infeasible."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.schedule import lower
from ogc_plan.planner.simulate import simulate
from ogc_plan.planner.solution import Solution, Status
from ogc_plan.planner.strategies import STRATEGIES, strategy_named
from ogc_plan.planner.strategies.optimal import solve

from models.light import light_path
from tests.brute import minimum_peak, minimum_recompute_ns
from tests.builders import SMALL_SIZES, chain, random_graph

OTHERS = sorted(set(STRATEGIES) - {"optimal"})


def random_problem(seed: int, low: int, high: int) -> Problem:
    rng = Random(seed)
    graph, costs = random_graph(rng, rng.randint(low, high), sizes=SMALL_SIZES if high <= 8 else None)
    return build_problem(graph, costs, rng.choice(list(Scope)))


def replayed_peak(problem: Problem, solution: Solution) -> int:
    assert solution.decisions is not None
    timeline = simulate(problem.graph, problem.costs, lower(problem.graph, solution.decisions))
    return timeline.peak_total_nbytes if problem.scope is Scope.TOTAL else timeline.peak_activation_nbytes


@pytest.mark.parametrize("strategy", OTHERS)
def test_it_is_no_worse_than_any_other_strategy_at_that_strategys_own_peak(strategy: str) -> None:
    worse = []
    for seed in range(25):
        problem = random_problem(seed, 5, 60)
        other = strategy_named(strategy)(problem)
        ours = solve(problem, other.peak_nbytes, effort="fast")
        if ours.decisions is None or ours.objective_ns > other.objective_ns:
            worse.append(seed)
    assert worse == []


def test_its_replayed_peak_is_the_one_it_claims_and_within_the_budget() -> None:
    wrong = []
    for seed in range(100, 140):
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
    solution = solve(problem, 3000, time_limit_s=0.0)
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
