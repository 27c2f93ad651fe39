"""Budgets that the default orders have no plan for: orders follow the lowest plan there is until it fits."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from threading import Event, get_ident

import pytest
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluation
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.optimal import reach_budget as reaching
from ogc_plan.planner.strategies.optimal import solve_context as tasks
from ogc_plan.planner.strategies.optimal import strategy as optimal
from ogc_plan.planner.strategies.optimal.alternate_orders import Reordered
from ogc_plan.planner.strategies.optimal.alternative_orders import OtherOrders
from ogc_plan.planner.strategies.optimal.effort import EFFORTS, Effort
from ogc_plan.planner.strategies.optimal.fixed_order import OneOrder
from ogc_plan.planner.strategies.optimal.incumbents import Candidate, Search
from ogc_plan.planner.strategies.optimal.problem_cache import Known, Prepared
from ogc_plan.planner.strategies.optimal.reach_budget import Reaching
from ogc_plan.planner.strategies.optimal.solve_context import Task
from ogc_plan.planner.strategies.orders.reordered_problem import default_orders

from tests.graphs.builders import chain
from tests.graphs.layered_graphs import layered_graph

DEFAULT = EFFORTS["default"]


def branching(op_count: int = 60) -> Problem:
    return build_problem(*layered_graph(Random(3), op_count, 4), Scope.ACTIVATIONS)


def crossed() -> Problem:
    """A graph whose default backward order has a higher floor than some plan in another one peaks at."""
    return build_problem(*layered_graph(Random(1), 40, 8), Scope.ACTIVATIONS)


def known(prepared: Prepared, *peaks: int) -> tuple[Known, ...]:
    """Plans that store everything and are said to peak so high."""
    events = prepared.evaluator.decisions(prepared.evaluator.labels(Label.KEEP)).sequence
    plans = (Candidate(prepared.evaluator.scratch.events[: len(events)].copy(), Evaluation(p, 0, 0, 0)) for p in peaks)
    return tuple(Known(prepared, None, (plan,)) for plan in plans)


def way(
    problem: Problem, budget: int, *, earlier: tuple[int, ...] = (), effort: Effort = DEFAULT,
    stop: Callable[[], bool] | None = None,
) -> Reaching:  # fmt: skip
    prepared = Prepared(problem)
    task = Task(prepared, None, None, effort, 0, stop, known(prepared, *earlier))
    return Reaching(task, task.run(budget, prepared))


class Starts:
    """What the search is begun from, one after the other; each ends at a peak of its own, and none fits at first."""

    def __init__(self, patch: pytest.MonkeyPatch, *reached: int) -> None:
        self.peaks: list[int] = []
        self.threads: list[int] = []
        left = iter(reached)

        def reach(_: Reaching, start: Reordered) -> Reordered:
            self.peaks.append(start.found.peak_nbytes)
            self.threads.append(get_ident())
            return replace(start, found=Evaluation(next(left), 1, 0, 0))

        patch.setattr(Reaching, "_reach", reach)
        patch.setattr(OneOrder, "follow", OneOrder.follow if not reached else lambda run, plan: run.search.keep(plan))


def low_start(patch: pytest.MonkeyPatch, peak: int | None) -> None:
    """Let the plan under an order of a low floor peak so high; None where there is no such order."""

    def start(made: Reaching) -> Reordered | None:
        lowest = made._lowest_known()
        return None if peak is None else replace(lowest, found=Evaluation(peak, 0, 0, 0))

    patch.setattr(Reaching, "_lowest_in_low_order", start)


def roomy(problem: Problem) -> int:
    """A budget that the default orders may meet."""
    return problem.floor_of_order.nbytes + 1


def test_a_plan_is_found_within_a_budget_that_no_plan_in_the_default_orders_meets() -> None:
    problem = crossed()
    budget = problem.floor_of_order.nbytes - 1
    assert [run.search.best is not None for run in way(problem, budget).found()] == [True]


def test_its_peak_is_the_one_that_is_measured_in_its_orders() -> None:
    problem = crossed()
    (run,) = way(problem, problem.floor_of_order.nbytes - 1).found()
    assert run.search.best is not None
    assert run.search.evaluator.evaluate_sequence(run.search.best.sequence) == run.search.best.found


def test_the_search_from_it_is_bounded() -> None:
    problem = crossed()
    (run,) = way(problem, problem.floor_of_order.nbytes - 1).found()
    assert run.search.bound_ns > 0


def test_begun_beside_it_finds_what_it_finds_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "_BEGUN_OPS", 0)
    problem, plans = branching(), []
    budget = problem.floor_of_order.nbytes + problem.floor_of_order.nbytes // 10
    for begins in (False, True):
        made = way(problem, budget, earlier=(budget * 2,))
        with made.beside():
            if begins:
                made.begin()
            plans.append([run.search.best and run.search.best.found for run in made.found()])
    assert plans[0] == plans[1]


@pytest.mark.parametrize(
    ("ops", "earlier", "beside"), [(60, (1 << 40,), True), (61, (1 << 40,), False), (60, (), False)]
)
def test_it_is_begun_beside_on_large_graphs_from_earlier_plans_alone(
    ops: int, earlier: tuple[int, ...], beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = branching()
    monkeypatch.setattr(reaching, "_BEGUN_OPS", ops + problem.op_count - 61)
    starts = Starts(monkeypatch, 0)
    made = way(problem, roomy(problem), earlier=earlier)
    with made.beside():
        made.begin()
        made.found()
    assert [thread != get_ident() for thread in starts.threads] == [beside]


def test_it_begins_from_the_lowest_of_the_earlier_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, starts = branching(), Starts(monkeypatch, 0)
    budget = roomy(problem)
    way(problem, budget, earlier=(budget + 9, budget + 5, budget + 7)).found()
    assert starts.peaks == [budget + 5]


def test_without_earlier_plans_it_begins_from_the_lowest_in_the_default_orders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, starts = branching(), Starts(monkeypatch, 0)
    made = way(problem, roomy(problem))
    made._default.search.lowest = Candidate(made._default.search.evaluator.scratch.events, Evaluation(1, 0, 0, 0))
    made.found()
    assert starts.peaks == [1]


@pytest.mark.parametrize(
    ("earlier", "below", "expected"), [((), 0, [8, 5]), ((8,), 0, [8, 5]), ((), 2, [8, 5]), ((8,), 2, [5, 8])]
)
def test_an_order_of_a_low_floor_comes_second_but_first_in_later_solves_that_the_default_orders_cannot_meet(
    earlier: tuple[int, ...], below: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, starts = branching(), Starts(monkeypatch, 1 << 50, 0)
    low_start(monkeypatch, 5)
    made = way(problem, roomy(problem) - below, earlier=earlier)
    made._default.search.lowest = Candidate(made._default.search.evaluator.scratch.events, Evaluation(8, 0, 0, 0))
    made.found()
    assert starts.peaks == expected


def test_where_none_fits_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = branching()
    Starts(monkeypatch, 1 << 50, 1 << 50)
    low_start(monkeypatch, 5)
    assert way(problem, roomy(problem)).found() == []


def test_without_an_order_of_a_low_floor_it_ends_after_one(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, starts = branching(), Starts(monkeypatch, 1 << 50)
    low_start(monkeypatch, None)
    assert (way(problem, roomy(problem)).found(), len(starts.peaks)) == ([], 1)


def test_what_following_leaves_above_the_budget_is_lowered_towards_it(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, budgets = branching(), list[int]()
    monkeypatch.setattr(reaching, "reorder_in_lanes", lambda _, starts, *__, **___: starts[0])
    monkeypatch.setattr(tasks, "lower_further", lambda search: budgets.append(search.budget_nbytes))
    made = way(problem, roomy(problem))
    made._reach(made._lowest_known())
    assert budgets == [roomy(problem)]


def test_what_may_run_beside_the_search_in_the_default_orders_evaluates_in_memory_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, used = branching(), list[object]()
    monkeypatch.setattr(reaching, "reorder_in_lanes", lambda _, starts, *__, **___: starts[0])
    monkeypatch.setattr(tasks, "lower_further", lambda search: used.append(search.evaluator.scratch))
    made = way(problem, roomy(problem))
    made._reach(made._lowest_known())
    assert [scratch is made._default.search.evaluator.scratch for scratch in used] == [False]


def test_a_stop_that_is_seen_on_the_way_alone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, asked = branching(), list[bool]()

    def following(_: Problem, starts: list[Reordered], search: Search, *__: object, **___: object) -> Reordered:
        asked.append(True)
        search.out_of_time()
        asked.append(False)
        return starts[0]

    monkeypatch.setattr(reaching, "reorder_in_lanes", following)
    made = way(problem, roomy(problem), stop=lambda: bool(asked) and asked[-1])
    assert (made.found(), made._default.search.stopped_early) == ([], True)


@pytest.mark.parametrize("problem", [build_problem(*chain(12), Scope.ACTIVATIONS), branching()])
def test_where_no_order_may_follow_the_peak_is_lowered_in_the_default_one(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(OneOrder, "reach", lambda run: asked.append(run))
    monkeypatch.setattr(OneOrder, "start", lambda *_, **__: None)  # so there is no plan
    monkeypatch.setattr(Reaching, "found", lambda _: [])
    monkeypatch.setattr(OtherOrders, "promising", lambda *_: [])
    optimal._best(Task(Prepared(problem), None, None, DEFAULT, 0, None), problem.floor_of_order.nbytes)
    assert bool(asked) is not way(problem, 1).possible


@pytest.mark.parametrize(
    ("effort", "problem", "may"),
    [
        (DEFAULT, branching(), True),
        (DEFAULT, build_problem(*chain(12), Scope.ACTIVATIONS), False),
        (replace(DEFAULT, lowerings=0), branching(), False),
        (replace(DEFAULT, following=0), branching(), False),
        (EFFORTS["high"], branching(), False),
    ],
)
def test_orders_follow_where_there_are_several_and_the_effort_has_rounds_and_iterations_for_it(
    effort: Effort, problem: Problem, may: bool
) -> None:
    assert way(problem, roomy(problem), effort=effort).possible is may


def test_where_they_may_not_nothing_is_found() -> None:
    problem = branching()
    assert way(problem, roomy(problem), effort=EFFORTS["fast"]).found() == []


def test_what_was_found_beside_is_kept_though_the_user_has_stopped_since(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "_BEGUN_OPS", 0)
    problem, stopped = branching(), Event()
    Starts(monkeypatch, 0)
    made = way(problem, roomy(problem), earlier=(1 << 40,), stop=stopped.is_set)
    with made.beside():
        made.begin()
        stopped.set()
        assert len(made.found()) == 1


def test_once_the_user_has_stopped_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, starts = branching(), Starts(monkeypatch)
    assert (way(problem, roomy(problem), stop=lambda: True).found(), starts.peaks) == ([], [])


def test_what_nobody_asks_for_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "_BEGUN_OPS", 0)
    problem, given_up = branching(), Event()

    def reach(made: Reaching, start: Reordered) -> Reordered:
        while not made._stopped():
            time.sleep(0.001)
        given_up.set()
        return start

    monkeypatch.setattr(Reaching, "_reach", reach)
    made = way(problem, roomy(problem), earlier=(1 << 40,))
    with made.beside():
        made.begin()
    assert given_up.is_set()


def test_an_error_in_what_nobody_asks_for_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "_BEGUN_OPS", 0)

    def reach(*_: object) -> Reordered:
        raise ZeroDivisionError

    monkeypatch.setattr(Reaching, "_reach", reach)
    problem = branching()
    made = way(problem, roomy(problem), earlier=(1 << 40,))
    with pytest.raises(ZeroDivisionError), made.beside():
        made.begin()


def test_an_error_in_the_search_beside_it_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "_BEGUN_OPS", 0)

    def reach(made: Reaching, start: Reordered) -> Reordered:
        while not made._stopped():
            time.sleep(0.001)
        return start

    monkeypatch.setattr(Reaching, "_reach", reach)
    problem = branching()
    made = way(problem, roomy(problem), earlier=(1 << 40,))
    with suppress(MemoryError), made.beside():
        made.begin()
        raise MemoryError
    assert made._given_up


def test_a_plan_that_fits_in_the_default_orders_after_all_stays_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = branching()
    Starts(monkeypatch, 0)
    (run,) = way(problem, roomy(problem)).found()
    assert (run.orders, default_orders(problem).backward) == (None, problem.backward_order)
