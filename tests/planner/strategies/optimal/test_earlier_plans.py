"""Solves of one prepared problem: each starts from the plans before it, does less, and is as honest as a first one."""

from __future__ import annotations

from random import Random

import pytest
from ogc_plan.planner.limits import NO_LIMITS, Limits
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.schedule import lower
from ogc_plan.planner.simulate import simulate
from ogc_plan.planner.solution import Solution, Status
from ogc_plan.planner.strategies import STRATEGIES, strategy_named
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluation
from ogc_plan.planner.strategies.optimal.effort import EFFORTS, Effort
from ogc_plan.planner.strategies.optimal.incumbents import Candidate
from ogc_plan.planner.strategies.optimal.problem_cache import ProblemCache
from ogc_plan.planner.strategies.optimal.solve_context import SolveContext
from ogc_plan.planner.strategies.optimal.strategy import AGAIN_NOTE, CHOSEN_CLASS, solve

from tests.graphs.builders import SMALL_SIZES, random_graph
from tests.graphs.layered_graphs import layered_graph
from tests.oracles.brute import minimum_peak, minimum_recompute_ns

DEFAULT, FAST = EFFORTS["default"], EFFORTS["fast"]
OTHERS = sorted(set(STRATEGIES) - {"optimal"})
SEEDS = range(90_000, 90_006)


def random_problem(seed: int, low: int, high: int) -> Problem:
    rng = Random(seed)
    return build_problem(*random_graph(rng, rng.randint(low, high)), Scope.ACTIVATIONS)


def branching(seed: int = 2) -> Problem:
    return build_problem(*layered_graph(Random(seed), 40, 5), Scope.ACTIVATIONS)


def wide() -> Problem:
    """A graph whose default backward order is not that of the lowest floor."""
    return build_problem(*layered_graph(Random(2), 100, 8), Scope.ACTIVATIONS)


def whole(problem: Problem) -> int:
    return strategy_named("keep-all")(problem).peak_nbytes


def between(problem: Problem, share: float) -> int:
    return problem.floor_nbytes + int((whole(problem) - problem.floor_nbytes) * share)


def context(cache: ProblemCache, effort: Effort = DEFAULT) -> SolveContext:
    return SolveContext(cache, NO_LIMITS, effort, 0)


def replayed_peak(problem: Problem, answer: Solution) -> int:
    assert answer.decisions is not None
    return simulate(problem.graph, problem.costs, lower(problem.graph, answer.decisions)).peak_activation_nbytes


def remembered(*plans: tuple[int, int], effort: Effort = DEFAULT) -> list[tuple[int, int]]:
    """What is left of plans, each a peak and a cost, that are remembered one after the other."""
    made = context(ProblemCache(branching()), effort)
    for peak, cost in plans:
        run = made.search(100, made.cache)
        run.incumbents.best = Candidate(run.incumbents.evaluator.scratch.events, Evaluation(peak, cost, 0, 0))
        made.remember(run)
    left = [known.candidates[0].found for known in made.cache.earlier.get((effort.name, 0), [])]
    return [(found.peak_nbytes, found.recompute_ns) for found in left]


def test_the_first_solve_does_all_the_work() -> None:
    assert context(ProblemCache(branching())).resumed().effort == DEFAULT


def test_a_later_solve_does_less() -> None:
    cache = ProblemCache(branching())
    solve(cache, between(cache.problem, 0.6))
    assert context(cache).resumed().effort == DEFAULT.resumed()


def test_a_solve_does_not_start_from_plans_of_another_seed() -> None:
    cache = ProblemCache(branching())
    solve(cache, between(cache.problem, 0.6), seed=1)
    assert context(cache).resumed().earlier == ()


@pytest.mark.parametrize("effort", ["fast", "high"])
def test_other_efforts_start_from_nothing_every_time(effort: str) -> None:
    cache = ProblemCache(random_problem(3, 8, 8))
    first, second = (solve(cache, between(cache.problem, 0.4), effort=effort) for _ in range(2))
    assert (first == second, context(cache, EFFORTS[effort]).resumed().earlier) == (True, ())


def test_a_solve_that_was_stopped_leaves_no_plan() -> None:
    cache = ProblemCache(branching())
    solve(cache, between(cache.problem, 0.6), limits=Limits(stop=lambda: True))
    assert cache.earlier == {}


def test_a_dominated_plan_is_forgotten() -> None:
    assert remembered((90, 7), (80, 9), (85, 7)) == [(80, 9), (85, 7)]


def test_other_efforts_remember_nothing() -> None:
    assert remembered((90, 7), effort=FAST) == []


def test_a_plan_without_recomputation_is_not_remembered() -> None:
    cache = ProblemCache(branching())
    solve(cache, whole(cache.problem))
    assert context(cache).resumed().effort == DEFAULT


def test_a_later_plan_has_a_note() -> None:
    cache = ProblemCache(branching())
    notes = [solve(cache, between(cache.problem, share)).notes for share in (0.6, 0.5)]
    assert notes == [(), (AGAIN_NOTE,)]


def test_plans_that_none_dominates_are_kept() -> None:
    assert remembered((90, 7), (80, 9), (85, 8)) == [(90, 7), (80, 9), (85, 8)]


def test_a_row_of_solves_is_deterministic() -> None:
    rows = []
    for _ in range(2):
        cache = ProblemCache(branching())
        budgets = [between(cache.problem, share) for share in (0.7, 0.3, 0.5)]
        rows.append([solve(cache, budget) for budget in budgets])
    assert rows[0] == rows[1]


def test_a_second_solve_of_a_budget_never_has_a_dearer_plan() -> None:
    dearer = []
    for seed in range(4):
        cache = ProblemCache(branching(seed))
        first, second = (solve(cache, between(cache.problem, 0.3)) for _ in range(2))
        if first.decisions is not None and (second.decisions is None or second.objective_ns > first.objective_ns):
            dearer.append(seed)
    assert dearer == []


def test_a_later_solve_is_no_worse_than_an_earlier_plan_in_another_order() -> None:
    found = []
    for seed in range(4):
        cache = ProblemCache(branching(seed))
        first = solve(cache, between(cache.problem, 0.25))
        if first.bound_class == CHOSEN_CLASS:
            found.append(solve(cache, between(cache.problem, 0.27)).objective_ns <= first.objective_ns)
    assert found
    assert all(found)


def test_the_smallest_peak_that_a_later_solve_reports_has_a_plan() -> None:
    broken = []
    for seed in SEEDS:
        cache = ProblemCache(random_problem(seed, 8, 30))
        solve(cache, between(cache.problem, 0.8))
        unknown = solve(cache, cache.problem.floor_nbytes)
        if unknown.decisions is None:
            assert unknown.smallest_nbytes is not None
            answers = [solve(given, unknown.smallest_nbytes) for given in (cache, cache.problem)]
            broken += [seed for answer in answers if answer.decisions is None]
    assert broken == []


def test_a_later_plan_is_within_its_budget() -> None:
    broken = []
    for seed in SEEDS:
        cache = ProblemCache(random_problem(seed, 8, 40))
        for share in (0.8, 0.3, 0.5):
            budget = between(cache.problem, share)
            answer = solve(cache, budget)
            if answer.decisions is not None and replayed_peak(cache.problem, answer) > budget:
                broken.append((seed, share))
    assert broken == []


@pytest.mark.parametrize("strategy", OTHERS)
def test_a_later_plan_is_no_worse_than_any_other_strategys_at_its_own_peak(strategy: str) -> None:
    worse = []
    for seed in SEEDS:
        cache = ProblemCache(random_problem(seed, 8, 40))
        other = strategy_named(strategy)(cache.problem)
        solve(cache, between(cache.problem, 0.8))
        ours = solve(cache, other.peak_nbytes)
        if ours.decisions is None or ours.objective_ns > other.objective_ns:
            worse.append(seed)
    assert worse == []


@pytest.mark.parametrize("first_seed", range(91_000, 91_100, 50))
def test_a_later_bound_and_plan_enclose_the_exact_optimum(first_seed: int) -> None:
    wrong = []
    for seed in range(first_seed, first_seed + 50):
        rng = Random(seed)
        graph, costs = random_graph(rng, rng.randint(3, 8), sizes=SMALL_SIZES)
        cache = ProblemCache(build_problem(graph, costs, Scope.ACTIVATIONS))
        solve(cache, between(cache.problem, 0.8))
        budget = minimum_peak(cache.problem) + rng.randint(0, 40)
        exact, answer = minimum_recompute_ns(cache.problem, budget), solve(cache, budget)
        assert exact is not None
        beaten = answer.decisions is not None and answer.objective_ns < exact
        if answer.bound_class != CHOSEN_CLASS and (beaten or answer.bound_ns > exact):
            wrong.append(seed)
        if answer.status is Status.INFEASIBLE:
            wrong.append(seed)
    assert wrong == []
