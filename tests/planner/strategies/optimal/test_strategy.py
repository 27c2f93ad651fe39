"""The certified strategy: never above its budget, never worse than another, never wrongly infeasible."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from ogc_plan.planner.errors import BoundMismatchError
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.schedule import lower
from ogc_plan.planner.simulate import simulate
from ogc_plan.planner.solution import Decisions, Solution, Status
from ogc_plan.planner.strategies import STRATEGIES, strategy_named
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluation
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.optimal import fixed_order as one_order
from ogc_plan.planner.strategies.optimal import strategy as optimal
from ogc_plan.planner.strategies.optimal.alternate_orders import Reordered
from ogc_plan.planner.strategies.optimal.effort import EFFORTS
from ogc_plan.planner.strategies.optimal.fixed_order import OneOrder
from ogc_plan.planner.strategies.optimal.incumbents import Candidate
from ogc_plan.planner.strategies.optimal.initial_plans import Others
from ogc_plan.planner.strategies.optimal.problem_cache import Known, Prepared
from ogc_plan.planner.strategies.optimal.solve_context import Task
from ogc_plan.planner.strategies.optimal.strategy import CHOSEN_CLASS, better, solve
from ogc_plan.planner.strategies.orders.reordered_problem import default_orders
from ogc_plan.planner.strategies.relaxation.parametric_min_cut import MinCut
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


def test_a_plan_below_the_smallest_peak_that_was_known_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = build_problem(*chain(12), Scope.ACTIVATIONS)
    prepared = Prepared(problem)
    whole = strategy_named("keep-all")(problem)
    sequence = np.array(whole.decisions.sequence, dtype=np.int64) if whole.decisions else np.zeros(0, dtype=np.int64)
    found = prepared.evaluator.evaluate_sequence(sequence)
    known = Known(prepared, None, (Candidate(sequence, found._replace(peak_nbytes=found.peak_nbytes + 5)),))
    monkeypatch.setattr(optimal, "_best", lambda *_: (None, False))
    monkeypatch.setattr(Task, "lowest", lambda _: ([known], False))
    assert solve(prepared, whole.peak_nbytes).decisions is not None


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


@pytest.mark.parametrize("effort", ["fast", "default"])
def test_the_same_effort_gives_the_same_plan_and_bound_twice(effort: str) -> None:
    problem = random_problem(140, 30, 40)
    budget = (problem.floor_nbytes + strategy_named("keep-all")(problem).peak_nbytes) // 2
    first, second = (replace(solve(problem, budget, effort=effort), wall_s=0.0) for _ in range(2))
    assert first == second


def test_asked_to_stop_at_any_moment_it_answers_with_what_it_has() -> None:
    problem = random_problem(141, 30, 40)
    budget = (problem.floor_nbytes + strategy_named("keep-all")(problem).peak_nbytes) // 2
    dishonest = []
    for calls in (0, 1, 2, 5, 20):
        count = iter(range(calls))
        answer = solve(problem, budget, stop=lambda left=count: next(left, None) is None)
        within = answer.decisions is None or replayed_peak(problem, answer) == answer.peak_nbytes <= budget
        if not (within and answer.stopped_early and answer.status is not Status.INFEASIBLE):
            dishonest.append(calls)
    assert dishonest == []


@pytest.mark.parametrize("effort", ["fast", "default"])
def test_a_problem_prepared_once_answers_every_budget_as_honestly_as_a_new_one(effort: str) -> None:
    problem = random_problem(142, 20, 30)
    prepared, whole = Prepared(problem), strategy_named("keep-all")(problem).peak_nbytes
    broken = []
    for share in (90, 50, 20, 70):
        budget = problem.floor_nbytes + (whole - problem.floor_nbytes) * share // 100
        answer = solve(prepared, budget, effort=effort)
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


def test_what_one_budget_found_out_changes_no_smallest_peak() -> None:
    problem = random_problem(6, 8, 40)
    whole = strategy_named("keep-all")(problem).peak_nbytes
    used = Prepared(problem)
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


def test_a_plan_below_the_bound_of_the_other_answer_is_told_as_a_defect() -> None:
    first = Solution(Status.FEASIBLE, "optimal", Decisions((0,)), 7, 5, BOUND_CLASS, 10)
    second = Solution(Status.OPTIMAL, "optimal", Decisions((0,)), 9, 9, BOUND_CLASS, 10)
    with pytest.raises(BoundMismatchError, match=r"a plan of 7 ns .* none takes less than 9 ns"):
        better(first, second, 10)


def test_a_false_bound_is_no_proof_but_told_as_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(6, 8, 40)
    budget = (problem.floor_nbytes + strategy_named("keep-all")(problem).peak_nbytes) // 2
    monkeypatch.setattr(MinCut, "bound_ns", lambda cut, budget_nbytes: 10**15)
    with pytest.raises(BoundMismatchError, match=f"none takes less than {10**15} ns"):
        solve(problem, budget)


def test_without_a_budget_the_better_of_two_answers_is_the_one_of_the_lower_peak() -> None:
    first = Solution(Status.FEASIBLE, "optimal", Decisions((0,)), 7, 5, BOUND_CLASS, 10)
    second = Solution(Status.FEASIBLE, "optimal", Decisions((0,)), 9, 7, BOUND_CLASS, 8)
    assert better(first, second, None) == second


def test_a_plan_whose_order_turns_out_to_be_the_default_one_is_known_under_that() -> None:
    prepared = Prepared(random_problem(5, 6, 6))
    problem, evaluator = prepared.problem, prepared.evaluator
    sequence = np.array(evaluator.decisions(evaluator.labels(Label.KEEP)).sequence)
    found = Reordered(default_orders(problem), evaluator, sequence, evaluator.evaluate_sequence(sequence))
    known = Task(prepared, None, None, EFFORTS["default"], 0, None).known(found)
    assert (known.prepared, known.orders) == (prepared, None)


def found_at(cost: int) -> Solution:
    return Solution(Status.FEASIBLE, "optimal", Decisions(()), objective_ns=cost, bound_class=CHOSEN_CLASS)


@pytest.mark.parametrize(("cheap", "dear", "expected"), [(5, 9, ["high"]), (9, 5, [])])
def test_high_effort_goes_on_from_a_plan_of_less_effort_that_it_does_not_find(
    cheap: int, dear: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = build_problem(*chain(12), Scope.ACTIVATIONS)
    begun = Task(Prepared(problem), None, None, EFFORTS["default"], 0, None).run(1, Prepared(problem))
    called: list[str] = []

    def going_on(task: Task, _: OneOrder) -> Solution:
        called.append(task.effort.name)
        return found_at(cheap)

    monkeypatch.setattr(optimal, "_gone_on", going_on)
    solved = {"default": (found_at(cheap), begun), "high": (found_at(dear), begun)}
    monkeypatch.setattr(optimal, "_solved", lambda task, _: solved[task.effort.name])
    solve(problem, 1 << 40, effort="high")
    assert called == expected


def test_where_it_goes_on_it_knows_what_is_proven_of_that_order_already(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(142, 20, 30)
    made = Task(Prepared(problem), None, None, EFFORTS["high"], 0, None)
    begun = made.run(1 << 40, made.prepared)
    begun.search.offer(begun.search.evaluator.labels(Label.DROP))
    begun.search.bound_ns = 1
    monkeypatch.setattr(OneOrder, "follow", lambda run, plan: run.search.keep(plan))
    monkeypatch.setattr(optimal, "_finish", lambda _, run: run)
    assert optimal._gone_on(made, begun).bound_ns == 1


def finished(monkeypatch: pytest.MonkeyPatch, hopeless: float) -> tuple[bool, bool]:
    """Whether a proof was begun under the default orders, and whether the search in others is told that one was."""
    problem = build_problem(*layered_graph(Random(2), 160, 5), Scope.ACTIVATIONS)
    effort = replace(EFFORTS["default"], hopeless=hopeless, holds=0, labels=0)
    made = Task(Prepared(problem), None, None, effort, 0, None)
    run, other = (made.run(1 << 40, made.prepared) for _ in range(2))
    for each in (run, other):
        each.search.offer(each.search.evaluator.labels(Label.DROP))
    begun: list[bool] = []
    told: list[bool] = []
    monkeypatch.setattr(OneOrder, "learn", lambda _, proof, **__: begun.append(proof is not None))
    monkeypatch.setattr(OneOrder, "finish", lambda *_, tried: told.append(tried))
    monkeypatch.setattr(optimal, "_reordered", lambda *_: other)
    optimal._finish(made, run)
    return begun[0], told[0]


@pytest.mark.parametrize(("hopeless", "expected"), [(1e9, (True, True)), (0.0, (False, False))])
def test_a_search_in_orders_made_for_the_plan_knows_whether_a_proof_was_begun_before(
    hopeless: float, expected: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert finished(monkeypatch, hopeless) == expected


@pytest.mark.parametrize("part", ["_make_counted", "_make_greedy", "_make_layers"])
def test_an_error_of_a_strategy_that_is_asked_beside_is_not_lost(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: Others) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Others, part, failing)
    problem = random_problem(142, 20, 30)
    with pytest.raises(ZeroDivisionError):
        solve(problem, (problem.floor_nbytes + strategy_named("keep-all")(problem).peak_nbytes) // 2)


def may_reorder(
    monkeypatch: pytest.MonkeyPatch, *, gap: float = 0.0, free: float = 0.0, ops: int = 40, effort: str = "default"
) -> bool:
    """Whether orders are made for a plan so far above the bound of its order and of all orders, shares of a step."""
    problem = build_problem(*layered_graph(Random(2), ops, 5), Scope.ACTIVATIONS)
    made = Task(Prepared(problem), None, None, EFFORTS[effort], 0, None)
    run, cost = made.run(1 << 40, made.prepared), problem.store_all_ns // 2
    run.search.best = Candidate(run.search.evaluator.scratch.events, Evaluation(0, cost, 0, 0))
    run.search.bound_ns = cost - int(gap * problem.store_all_ns)
    monkeypatch.setattr(optimal, "order_free_bound", lambda *_: cost - int(free * problem.store_all_ns))
    return optimal._may_reorder(made, run)


@pytest.mark.parametrize(("free", "expected"), [(0.004, True), (0.002, False)])
def test_orders_are_made_for_the_best_plan_of_an_order_where_another_may_be_better(
    free: float, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert may_reorder(monkeypatch, free=free) is expected


@pytest.mark.parametrize("given", [{"ops": 160}, {"effort": "high"}])
def test_they_are_not_on_larger_graphs_nor_where_other_orders_were_searched_already(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not may_reorder(monkeypatch, free=0.1, **given)


@pytest.mark.parametrize(("gap", "expected"), [(0.004, True), (0.002, False)])
def test_orders_are_made_for_a_plan_where_its_own_leaves_a_gap(
    gap: float, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert may_reorder(monkeypatch, gap=gap, free=0.1, ops=160) is expected


@pytest.mark.parametrize(("known", "times"), [(False, 1), (True, 0)])
def test_roundings_under_smaller_budgets_are_spared_where_plans_are_known(
    known: bool, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = random_problem(142, 20, 30)
    made = Task(Prepared(problem), None, None, EFFORTS["default"], 0, None)
    run, calls = made.run(problem.floor_nbytes * 5 // 4, made.prepared), list[object]()
    labels = run.search.evaluator.labels(Label.KEEP)
    plan = Candidate(run.search.evaluator.scratch.events.copy(), Evaluation(1 << 40, 1, 0, 0), labels)
    monkeypatch.setattr(one_order, "repair", lambda *_: calls.append(None))
    run.start([plan] if known else [])
    assert len(calls) == times
