"""Solves of one prepared problem: each starts from the plans before it and is as honest as a first one."""

from __future__ import annotations

from random import Random

import pytest
from ogc_plan.planner.limits import Limits
from ogc_plan.planner.problem import Problem, Scope
from ogc_plan.planner.solution import Status
from ogc_plan.planner.strategies import STRATEGIES, strategy_named
from ogc_plan.planner.strategies.optimal.problem_cache import ProblemCache
from ogc_plan.planner.strategies.optimal.strategy import AGAIN_NOTE, CHOSEN_CLASS, solve

from tests.graphs.problems import between, layered_problem, random_problem
from tests.oracles.brute import minimum_peak, minimum_recompute_ns
from tests.oracles.replay import keeps_its_word

OTHERS = sorted(set(STRATEGIES) - {"optimal"})
SEEDS = range(90_000, 90_003)


def unordered(seed: int, most: int) -> ProblemCache:
    return ProblemCache(random_problem(seed, 3 if most == 8 else 8, most, scope=Scope.ACTIVATIONS))


def branching(seed: int = 2) -> Problem:
    return layered_problem(seed, 40, 5)


def test_the_least_effort_starts_from_nothing_every_time() -> None:
    cache = unordered(3, 8)
    first, second = (solve(cache, between(cache.problem, 40), effort="fast") for _ in range(2))
    assert first == second


def test_a_solve_that_was_stopped_changes_no_later_one() -> None:
    cache = ProblemCache(branching())
    budget = between(cache.problem, 60)
    solve(cache, budget, limits=Limits(stop=lambda: True))
    assert solve(cache, budget) == solve(cache.problem, budget)


def test_a_later_plan_has_a_note() -> None:
    cache = ProblemCache(branching())
    notes = [solve(cache, between(cache.problem, percent)).notes for percent in (60, 50)]
    assert notes == [(), (AGAIN_NOTE,)]


def test_a_row_of_solves_is_deterministic() -> None:
    rows = []
    for _ in range(2):
        cache = ProblemCache(branching())
        rows.append([solve(cache, between(cache.problem, percent)) for percent in (70, 30, 50)])
    assert rows[0] == rows[1]


def test_a_second_solve_of_a_budget_never_has_a_dearer_plan() -> None:
    dearer = []
    for seed in range(2):
        cache = ProblemCache(branching(seed))
        first, second = (solve(cache, between(cache.problem, 30)) for _ in range(2))
        if first.decisions is not None and (second.decisions is None or second.objective_ns > first.objective_ns):
            dearer.append(seed)
    assert dearer == []


def test_the_smallest_peak_that_a_later_solve_reports_has_a_plan() -> None:
    broken = []
    for seed in SEEDS:
        cache = unordered(seed, 30)
        solve(cache, between(cache.problem, 80))
        unknown = solve(cache, cache.problem.floor_nbytes)
        if unknown.decisions is None:
            assert unknown.smallest_nbytes is not None
            answers = [solve(given, unknown.smallest_nbytes) for given in (cache, cache.problem)]
            broken += [seed for answer in answers if answer.decisions is None]
    assert broken == []


@pytest.mark.parametrize("effort", ["fast", "default"])
def test_a_later_plan_is_within_its_budget(effort: str) -> None:
    broken = []
    for seed in SEEDS:
        cache = unordered(seed, 40)
        for percent in (80, 30, 50):
            budget = between(cache.problem, percent)
            if not keeps_its_word(cache.problem, solve(cache, budget, effort=effort), budget):
                broken.append((seed, percent))
    assert broken == []


def test_a_later_plan_is_no_worse_than_any_other_strategys_at_its_own_peak() -> None:
    worse = []
    for seed in SEEDS:
        cache = unordered(seed, 40)
        solve(cache, between(cache.problem, 80))
        for name in OTHERS:
            other = strategy_named(name)(cache.problem)
            ours = solve(cache, other.peak_nbytes)
            if ours.decisions is None or ours.objective_ns > other.objective_ns:
                worse.append((seed, name))
    assert worse == []


def test_a_later_bound_and_plan_enclose_the_exact_optimum() -> None:
    wrong = []
    for seed in range(91_000, 91_040):
        cache = unordered(seed, 8)
        solve(cache, between(cache.problem, 80))
        budget = minimum_peak(cache.problem) + Random(seed).randint(0, 40)
        exact, answer = minimum_recompute_ns(cache.problem, budget), solve(cache, budget)
        assert exact is not None
        beaten = answer.decisions is not None and answer.objective_ns < exact
        wrong_bound = answer.bound_class != CHOSEN_CLASS and (beaten or answer.bound_ns > exact)
        if wrong_bound or answer.status is Status.INFEASIBLE:
            wrong.append(seed)
    assert wrong == []
