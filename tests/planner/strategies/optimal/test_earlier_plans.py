"""Solves of one prepared problem: each starts from the plans before it, does less, and is as honest as a first one."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.schedule import lower
from ogc_plan.planner.simulate import simulate
from ogc_plan.planner.solution import Solution, Status
from ogc_plan.planner.strategies import STRATEGIES, strategy_named
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluation
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.optimal.effort import EFFORTS, Effort
from ogc_plan.planner.strategies.optimal.fixed_order import OneOrder
from ogc_plan.planner.strategies.optimal.incumbents import Candidate
from ogc_plan.planner.strategies.optimal.problem_cache import Known, Prepared
from ogc_plan.planner.strategies.optimal.solve_context import Task
from ogc_plan.planner.strategies.optimal.strategy import AGAIN_NOTE, CHOSEN_CLASS, _followed, solve
from ogc_plan.planner.strategies.orders.reordered_problem import Orders

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


def task(prepared: Prepared, effort: Effort = DEFAULT) -> Task:
    return Task(prepared, None, None, effort, 0, None)


def replayed_peak(problem: Problem, answer: Solution) -> int:
    assert answer.decisions is not None
    return simulate(problem.graph, problem.costs, lower(problem.graph, answer.decisions)).peak_activation_nbytes


def remembered(*plans: tuple[int, int], effort: Effort = DEFAULT) -> list[tuple[int, int]]:
    """What is left of plans, each a peak and a cost, that are remembered one after the other."""
    made = task(Prepared(branching()), effort)
    for peak, cost in plans:
        run = made.run(100, made.prepared)
        run.search.best = Candidate(run.search.evaluator.scratch.events, Evaluation(peak, cost, 0, 0))
        made.remember(run)
    left = [known.candidates[0].found for known in made.prepared.earlier.get((effort.name, 0), [])]
    return [(found.peak_nbytes, found.recompute_ns) for found in left]


def other_order(prepared: Prepared) -> tuple[Orders, Prepared]:
    """The problem in an order of a low floor."""
    low = prepared.low(lambda: False)
    assert low is not None
    return low


def test_the_first_solve_does_all_of_the_work() -> None:
    assert task(Prepared(branching())).again().effort == DEFAULT


def test_a_later_one_does_less() -> None:
    prepared = Prepared(branching())
    solve(prepared, between(prepared.problem, 0.6))
    assert task(prepared).again().effort == DEFAULT.again


def test_what_it_takes_to_look_for_the_smallest_peak_is_no_less() -> None:
    fields = ("name", "labels", "peaks", "deepest", "lowerings", "chain", "orders", "eager", "restarts", "reaching")
    assert DEFAULT.again is not None
    assert [getattr(DEFAULT.again, field) for field in fields] == [getattr(DEFAULT, field) for field in fields]


def test_plans_of_another_seed_are_not_started_from() -> None:
    prepared = Prepared(branching())
    solve(prepared, between(prepared.problem, 0.6), seed=1)
    assert task(prepared).again().earlier == ()


@pytest.mark.parametrize("effort", ["fast", "high"])
def test_efforts_that_do_no_less_a_second_time_start_from_nothing(effort: str) -> None:
    prepared = Prepared(random_problem(3, 8, 8))
    first, second = (
        replace(solve(prepared, between(prepared.problem, 0.4), effort=effort), wall_s=0.0) for _ in range(2)
    )
    assert (first == second, task(prepared, EFFORTS[effort]).again().earlier) == (True, ())


def test_a_solve_that_was_stopped_is_not_started_from() -> None:
    prepared = Prepared(branching())
    solve(prepared, between(prepared.problem, 0.6), stop=lambda: True)
    assert prepared.earlier == {}


def test_a_plan_is_forgotten_for_one_that_takes_no_more_of_anything() -> None:
    assert remembered((90, 7), (80, 9), (85, 7)) == [(80, 9), (85, 7)]


def test_an_effort_that_does_no_less_a_second_time_remembers_nothing() -> None:
    assert remembered((90, 7), effort=FAST) == []


def test_a_plan_without_recomputation_makes_no_later_solve_do_less() -> None:
    prepared = Prepared(branching())
    solve(prepared, whole(prepared.problem))
    assert task(prepared).again().effort == DEFAULT


def test_a_later_plan_says_so() -> None:
    prepared = Prepared(branching())
    notes = [solve(prepared, between(prepared.problem, share)).notes for share in (0.6, 0.5)]
    assert notes == [(), (AGAIN_NOTE,)]


def test_plans_that_take_less_of_something_are_kept() -> None:
    assert remembered((90, 7), (80, 9), (85, 8)) == [(90, 7), (80, 9), (85, 8)]


def test_a_row_of_solves_gives_the_same_answers_whenever_it_is_asked_for() -> None:
    rows = []
    for _ in range(2):
        prepared = Prepared(branching())
        budgets = [between(prepared.problem, share) for share in (0.7, 0.3, 0.5)]
        rows.append([replace(solve(prepared, budget), wall_s=0.0) for budget in budgets])
    assert rows[0] == rows[1]


def test_asked_again_for_a_budget_it_never_has_a_dearer_plan() -> None:
    dearer = []
    for seed in range(4):
        prepared = Prepared(branching(seed))
        first, second = (solve(prepared, between(prepared.problem, 0.3)) for _ in range(2))
        if first.decisions is not None and (second.decisions is None or second.objective_ns > first.objective_ns):
            dearer.append(seed)
    assert dearer == []


def test_a_plan_in_another_order_is_gone_on_from() -> None:
    found = []
    for seed in range(4):
        prepared = Prepared(branching(seed))
        first = solve(prepared, between(prepared.problem, 0.25))
        if first.bound_class == CHOSEN_CLASS:
            found.append(solve(prepared, between(prepared.problem, 0.27)).objective_ns <= first.objective_ns)
    assert found
    assert all(found)


def followed(budget: int, *plans: tuple[int, int], best: tuple[int, int] | None = None) -> list[tuple[int, int]]:
    """The plan that is gone on from of earlier ones in another order, where the default orders have the ``best``."""
    prepared = Prepared(wide())
    orders, other = other_order(prepared)
    events = other.evaluator.decisions(other.evaluator.labels(Label.KEEP)).sequence
    earlier = tuple(Known(other, orders, (Candidate(events, Evaluation(*plan, 0, 0)),)) for plan in plans)
    made = replace(task(prepared), earlier=earlier)
    default = made.run(budget, prepared)
    if best is not None:
        default.search.best = Candidate(events, Evaluation(*best, 0, 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OneOrder, "follow", lambda run, plan: run.search.keep(plan))
        runs = _followed(made, default)
    found = [run.search.lowest.found for run in runs if run.search.lowest is not None]
    return [(one.peak_nbytes, one.recompute_ns) for one in found]


ROOMY = 1 << 40


def test_of_the_earlier_plans_within_the_budget_the_cheapest_is_gone_on_from() -> None:
    assert followed(ROOMY, (90, 9), (80, 7), (70, 8)) == [(80, 7)]


def test_earlier_plans_above_the_budget_are_not_gone_on_from_in_their_orders() -> None:
    assert followed(84, (90, 9), (85, 7)) == []


def test_an_earlier_plan_that_is_no_better_than_the_default_orders_is_not_gone_on_from() -> None:
    assert followed(ROOMY, (90, 9), best=(90, 9)) == []


def test_the_smallest_peak_that_a_later_solve_tells_has_a_plan() -> None:
    broken = []
    for seed in SEEDS:
        prepared = Prepared(random_problem(seed, 8, 30))
        solve(prepared, between(prepared.problem, 0.8))
        unknown = solve(prepared, prepared.problem.floor_nbytes)
        if unknown.decisions is None:
            assert unknown.smallest_nbytes is not None
            answers = [solve(given, unknown.smallest_nbytes) for given in (prepared, prepared.problem)]
            broken += [seed for answer in answers if answer.decisions is None]
    assert broken == []


def test_a_later_plan_is_within_its_budget() -> None:
    broken = []
    for seed in SEEDS:
        prepared = Prepared(random_problem(seed, 8, 40))
        for share in (0.8, 0.3, 0.5):
            budget = between(prepared.problem, share)
            answer = solve(prepared, budget)
            if answer.decisions is not None and replayed_peak(prepared.problem, answer) > budget:
                broken.append((seed, share))
    assert broken == []


@pytest.mark.parametrize("strategy", OTHERS)
def test_a_later_plan_is_no_worse_than_any_other_strategys_at_its_own_peak(strategy: str) -> None:
    worse = []
    for seed in SEEDS:
        prepared = Prepared(random_problem(seed, 8, 40))
        other = strategy_named(strategy)(prepared.problem)
        solve(prepared, between(prepared.problem, 0.8))
        ours = solve(prepared, other.peak_nbytes)
        if ours.decisions is None or ours.objective_ns > other.objective_ns:
            worse.append(seed)
    assert worse == []


@pytest.mark.parametrize("first_seed", range(91_000, 91_100, 50))
def test_a_later_bound_and_plan_enclose_the_exact_optimum(first_seed: int) -> None:
    wrong = []
    for seed in range(first_seed, first_seed + 50):
        rng = Random(seed)
        graph, costs = random_graph(rng, rng.randint(3, 8), sizes=SMALL_SIZES)
        prepared = Prepared(build_problem(graph, costs, Scope.ACTIVATIONS))
        solve(prepared, between(prepared.problem, 0.8))
        budget = minimum_peak(prepared.problem) + rng.randint(0, 40)
        exact, answer = minimum_recompute_ns(prepared.problem, budget), solve(prepared, budget)
        assert exact is not None
        beaten = answer.decisions is not None and answer.objective_ns < exact
        if answer.bound_class != CHOSEN_CLASS and (beaten or answer.bound_ns > exact):
            wrong.append(seed)
        if answer.status is Status.INFEASIBLE:
            wrong.append(seed)
    assert wrong == []
