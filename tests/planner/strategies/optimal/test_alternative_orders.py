"""Searches under other orders: begun beside the search under the default ones they find the same, and end with it."""

from __future__ import annotations

import time
from _thread import interrupt_main
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from random import Random
from threading import Barrier, Event

import pytest
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies import strategy_named
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluation
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.optimal import alternative_orders as other_orders
from ogc_plan.planner.strategies.optimal import strategy as optimal
from ogc_plan.planner.strategies.optimal.alternative_orders import ORDER_WORTH, OtherOrders
from ogc_plan.planner.strategies.optimal.effort import EFFORTS
from ogc_plan.planner.strategies.optimal.fixed_order import OneOrder
from ogc_plan.planner.strategies.optimal.incumbents import Candidate
from ogc_plan.planner.strategies.optimal.problem_cache import Prepared
from ogc_plan.planner.strategies.optimal.reach_budget import Reaching
from ogc_plan.planner.strategies.optimal.solve_context import Task
from ogc_plan.planner.strategies.relaxation.linear_program import LinearProgram, solve

from tests.graphs.layered_graphs import layered_graph

SIZES = [60, 160]
"""The relaxations of the orders are compared on the first only."""


def tight(op_count: int) -> tuple[Problem, int]:
    """A graph of many branches, and a budget that only other orders than the default ones may meet."""
    problem = build_problem(*layered_graph(Random(3), op_count, 4), Scope.ACTIVATIONS)
    return problem, problem.floor_of_order.nbytes


def loose(share: float) -> tuple[Problem, int]:
    """The small one, and a budget that lies by this share between the tight one and what storing everything takes."""
    problem, lowest = tight(SIZES[0])
    return problem, lowest + int(share * (strategy_named("keep-all")(problem).peak_nbytes - lowest))


def task(problem: Problem, stop: Callable[[], bool] | None = None) -> Task:
    return Task(Prepared(problem), None, None, replace(EFFORTS["default"], eager=True), 0, stop)


def found(op_count: int, *, beside: bool) -> list[tuple[object, int, object]]:
    """The orders, bounds and plans of the promising searches."""
    problem, budget = tight(op_count)
    whole = task(problem)
    others = OtherOrders(whole, budget)
    with others.beside():
        if beside:
            others.begin()
        runs = others.promising(whole.run(budget, whole.prepared).search)
    return [(run.orders, run.search.bound_ns, run.search.best and run.search.best.found) for run in runs]


@pytest.mark.parametrize("op_count", SIZES)
def test_begun_beside_they_find_what_they_find_when_begun_afterwards(op_count: int) -> None:
    assert found(op_count, beside=True) == found(op_count, beside=False) != []


@pytest.mark.parametrize("op_count", SIZES)
def test_what_was_asked_for_may_go_on_afterwards(op_count: int) -> None:
    problem, budget = tight(op_count)
    whole = task(problem, lambda: False)
    others = OtherOrders(whole, budget)
    with others.beside():
        others.begin()
        runs = others.promising(whole.run(budget, whole.prepared).search)
    program, search = LinearProgram([1]), runs[0].search
    assert (solve(program, interrupter=search.interrupter).solved, search.stop) == (True, whole.stop)


@pytest.mark.parametrize("op_count", SIZES)
def test_plans_and_bounds_are_those_of_searches_one_after_the_other(
    op_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, lowest = tight(op_count)
    answers: list[list[object]] = [[], []]
    for number, found in enumerate(answers):
        if number:
            monkeypatch.setattr(OtherOrders, "begin", lambda _: None)
        prepared = Prepared(problem)
        highest = prepared.evaluator.evaluate(prepared.evaluator.labels(Label.KEEP)).peak_nbytes
        for share in (0.2, 0.1):  # one after the other, with what was worked out before
            answer = optimal.solve(prepared, lowest + int(share * (highest - lowest)))
            found.append((answer.decisions, answer.bound_ns, answer.bound_class))
    assert answers[0] == answers[1]


def test_the_cut_of_one_search_leaves_flows_behind_and_nothing_that_decides() -> None:
    problem, budget = tight(SIZES[0])
    whole = task(problem)
    whole.run(budget, whole.prepared).bound_quickly()
    cut = whole.prepared.cut
    assert (len(cut._known), len(cut._supports), len(cut._solved) > 0) == (1, 1, True)


def waiting(monkeypatch: pytest.MonkeyPatch, pressed: Event | None = None) -> list[bool]:
    """Every search waits to be stopped, in a linear program; the list says of each whether it was, before a minute.

    ``pressed`` is set when one begins.
    """
    stopped: list[bool] = []

    def start(run: OneOrder, known: Sequence[Candidate] = ()) -> None:
        late, interrupted = time.monotonic() + 60, Event()
        if pressed is not None:
            pressed.set()
        with run.search.interrupter.over(interrupted.set):
            while not run.search.out_of_time() and time.monotonic() < late:
                time.sleep(0.01)
            by_user = pressed is not None
            stopped.append(run.search.stopped_early and (by_user or interrupted.wait(60)))

    monkeypatch.setattr(OneOrder, "start", start)
    return stopped


def begun(others: OtherOrders) -> None:
    """Begin, and wait until the searches are known."""
    others.begin()
    while not others._ranked:
        assert others._begun is not None
        assert not others._begun.done()
        time.sleep(0.01)


def test_what_nobody_asks_for_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, budget = tight(SIZES[1])
    stopped, others = waiting(monkeypatch), OtherOrders(task(problem), budget)
    with others.beside():
        begun(others)
    assert stopped == [True]


def test_an_exception_in_the_search_beside_them_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, budget = tight(SIZES[1])
    stopped, others = waiting(monkeypatch), OtherOrders(task(problem), budget)
    with suppress(KeyboardInterrupt), others.beside():
        begun(others)
        raise KeyboardInterrupt
    assert stopped == [True]


def test_one_that_can_save_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, budget = tight(SIZES[1])
    whole = task(problem)
    stopped, others = waiting(monkeypatch), OtherOrders(whole, budget)
    default = whole.run(budget, whole.prepared).search
    cost = int(1.5 * ORDER_WORTH * problem.store_all_ns)
    with others.beside():
        begun(others)
        default.best = Candidate(default.evaluator.scratch.events, Evaluation(0, cost, 0, 0))
        runs = others.promising(default)
    assert (runs, stopped, default.stopped_early) == ([], [True], False)


def test_a_user_who_stops_the_search_stops_them(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, budget = tight(SIZES[1])
    pressed = Event()
    whole = task(problem, pressed.is_set)
    stopped, others = waiting(monkeypatch, pressed), OtherOrders(whole, budget)
    default = whole.run(budget, whole.prepared).search
    with others.beside():
        others.begin()
        others.promising(default)
    assert (stopped, default.stopped_early) == ([True], True)


@pytest.mark.parametrize(("share", "count"), [(0.9, 0), (0.0, 1)])
def test_they_are_begun_where_the_relaxations_lead_to_no_plan(share: float, count: int) -> None:
    problem, budget = loose(share)
    whole, calls = task(problem), [0]

    def begin() -> None:
        calls[0] += 1

    whole.run(budget, whole.prepared).start(unreached=begin)
    assert calls == [count]


@pytest.mark.parametrize(("share", "reached", "asked"), [(0.9, False, False), (0.0, True, False), (0.0, False, True)])
def test_the_default_effort_asks_them_where_neither_the_default_orders_nor_ones_made_for_a_plan_have_any(
    share: float, reached: bool, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, budget = loose(share)
    calls: list[object] = []
    monkeypatch.setattr(OtherOrders, "promising", lambda *_: calls.append(None) or [])
    if not reached:
        monkeypatch.setattr(Reaching, "found", lambda _: [])
    optimal.solve(problem, budget)
    assert bool(calls) is asked


def failing() -> None:
    raise MemoryError


def test_their_relaxations_are_solved_two_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, budget = tight(SIZES[0])
    whole, both, relaxed = task(problem), Barrier(2), list[OneOrder]()

    def relax(run: OneOrder) -> None:
        relaxed.append(run)
        if len(relaxed) <= both.parties:
            both.wait(60)

    monkeypatch.setattr(OneOrder, "relax", relax)
    OtherOrders(whole, budget).promising(whole.run(budget, whole.prepared).search)
    assert not both.broken


@pytest.mark.usefixtures("usual_interrupts")
@pytest.mark.parametrize(("fail", "error"), [(failing, MemoryError), (interrupt_main, KeyboardInterrupt)])
def test_an_error_or_an_interrupt_in_one_relaxation_ends_the_others_and_is_not_lost(
    fail: Callable[[], None], error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, budget = tight(SIZES[0])
    whole, number, stopped = task(problem), count(), list[bool]()

    def relax(run: OneOrder) -> None:
        if next(number) == 1:
            fail()
        late = time.monotonic() + 60
        while not run.search.out_of_time() and time.monotonic() < late:
            time.sleep(0.01)
        stopped.append(run.search.stopped_early)

    monkeypatch.setattr(OneOrder, "relax", relax)
    with pytest.raises(error):
        OtherOrders(whole, budget).promising(whole.run(budget, whole.prepared).search)
    assert set(stopped) == {True}


def test_an_error_in_what_nobody_asks_for_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, budget = tight(SIZES[0])
    others, relaxing = OtherOrders(task(problem), budget), Event()

    def relax(_: OneOrder) -> None:
        relaxing.set()
        failing()

    def begin_and_leave() -> None:
        with others.beside():
            others.begin()
            relaxing.wait(60)

    monkeypatch.setattr(OneOrder, "relax", relax)
    with pytest.raises(MemoryError):
        begin_and_leave()


def test_compared_one_at_a_time_they_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    two_at_a_time = found(SIZES[0], beside=False)
    monkeypatch.setattr(other_orders, "LANES", 1)
    assert found(SIZES[0], beside=False) == two_at_a_time != []


@pytest.mark.parametrize(("settling", "asked"), [(-1.0, "order proof finish"), (10.0, "proof order finish")])
def test_an_order_is_made_for_a_plan_before_its_proof_is_waited_for_where_the_gap_is_wide(
    settling: float, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, budget = loose(0.2)
    calls: list[str] = []
    monkeypatch.setattr(optimal, "_SETTLING", settling)
    monkeypatch.setattr(optimal, "_may_reorder", lambda *_: True)
    monkeypatch.setattr(optimal, "_reordered", lambda *_: calls.append("order"))
    monkeypatch.setattr(OneOrder, "learn", lambda *_, **__: calls.append("proof"))
    monkeypatch.setattr(OneOrder, "finish", lambda *_, **__: calls.append("finish"))
    optimal.solve(problem, budget)
    assert " ".join(calls) == asked


def test_an_order_is_made_for_a_plan_that_integers_settled_only_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, budget = loose(0.2)
    answers, calls = iter([False, True]), list[str]()
    monkeypatch.setattr(optimal, "_may_reorder", lambda *_: next(answers))
    monkeypatch.setattr(optimal, "_reordered", lambda *_: calls.append("order"))
    monkeypatch.setattr(OneOrder, "finish", lambda *_, **__: calls.append("finish"))
    optimal.solve(problem, budget)
    assert calls == ["finish", "order", "finish"]
