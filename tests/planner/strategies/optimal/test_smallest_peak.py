"""The smallest peak: under several orders, under orders made for its plans, and at last with more annealing."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from ogc_plan.planner.peak_bounds.step_floor import Floor
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.optimal import problem_cache as prepareds
from ogc_plan.planner.strategies.optimal import smallest_peak as lower_peaks
from ogc_plan.planner.strategies.optimal import solve_context as tasks
from ogc_plan.planner.strategies.optimal.effort import EFFORTS
from ogc_plan.planner.strategies.optimal.incumbents import Candidate, Search
from ogc_plan.planner.strategies.optimal.initial_plans import Others
from ogc_plan.planner.strategies.optimal.problem_cache import Known, Prepared
from ogc_plan.planner.strategies.optimal.smallest_peak import lower_further
from ogc_plan.planner.strategies.optimal.solve_context import Task
from ogc_plan.planner.strategies.optimal.strategy import smallest_peak
from ogc_plan.planner.strategies.orders.reordered_problem import Orders

from tests.graphs.layered_graphs import layered_graph

SHORT = replace(EFFORTS["default"], labels=100_000, reaching=10_000, peaks=2_000, deepest=20_000, reorderings=1)


def layered(seed: int = 2, ops: int = 100, width: int = 8) -> Problem:
    return build_problem(*layered_graph(Random(seed), ops, width), Scope.ACTIVATIONS)


def task(problem: Problem, **changes: int | bool) -> Task:
    return Task(Prepared(problem), None, None, replace(SHORT, **changes), 0, None)


def lowest(of: Task) -> int:
    known, stopped = of.lowest()
    assert not stopped
    return min(plans.peak_nbytes for plans in known)


def test_an_order_of_a_low_floor_is_among_those_tried() -> None:
    problem = layered()
    floors = [prepared.problem.floor_of_order.nbytes for prepared, _ in task(problem).variants()]
    low = Prepared(problem).low(lambda: False)
    assert low is not None
    assert low[1].problem.floor_of_order.nbytes in floors


def test_once_it_is_late_no_order_of_a_low_floor_is_looked_for() -> None:
    prepared = Prepared(layered())
    assert (prepared.low(lambda: True), prepared.low(lambda: False) is None) == (None, False)


def test_no_order_is_tried_twice() -> None:
    for seed in range(10):
        tried = [orders for _, orders in task(layered(seed, 40, 5), eager=True).variants()]
        assert len(set(tried)) == len(tried)


def test_an_effort_that_is_not_eager_tries_no_others() -> None:
    assert max(len(task(layered(seed, 40, 5), eager=False).variants()) for seed in range(10)) == 2


def test_more_annealing_lowers_the_lowest_peak_further() -> None:
    evaluator = Evaluator(layered())
    search = Search(evaluator, 1, effort=SHORT)
    begun = search.offer(evaluator.labels(Label.DROP)).peak_nbytes
    lower_further(search)
    assert search.lowest is not None
    assert search.lowest.found.peak_nbytes < begun


def test_an_effort_without_it_leaves_the_peak_as_it_is() -> None:
    evaluator = Evaluator(layered())
    search = Search(evaluator, 1, effort=replace(SHORT, deepest=0))
    begun = search.offer(evaluator.labels(Label.DROP)).peak_nbytes
    lower_further(search)
    assert search.lowest is not None
    assert search.lowest.found.peak_nbytes == begun


def test_orders_made_for_the_plans_have_lower_peaks() -> None:
    problems = [layered(seed, 60, 6) for seed in range(3)]
    without = [lowest(task(problem, deepest=0, lowerings=0)) for problem in problems]
    assert sum(lowest(task(problem, deepest=0)) for problem in problems) < sum(without)


def test_what_the_last_annealing_finds_is_the_smallest_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    def finding(search: Search) -> None:
        assert search.lowest is not None
        search.lowest = replace(search.lowest, found=search.lowest.found._replace(peak_nbytes=1))

    monkeypatch.setattr(tasks, "lower_further", finding)
    assert lowest(task(layered())) == 1


def test_the_last_annealing_begins_where_the_reordering_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    def noting(search: Search) -> None:
        assert search.lowest is not None
        begun.append(search.lowest.found.peak_nbytes)

    monkeypatch.setattr(tasks, "lower_further", noting)
    problem = layered()
    assert [lowest(task(problem))] == begun


def test_orders_follow_the_lowest_plans_with_the_iterations_of_a_graph_of_that_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[int] = []
    monkeypatch.setattr(
        tasks, "reorder_in_lanes", lambda _, starts, *__, iterations, **___: given.append(iterations) or starts[0]
    )
    of = task(layered(1, 400, 8), adapting=1_000, labels=10_000, peaks=100)
    of.lowest()
    assert given == [of.effort.lowering_on(400)]


@pytest.mark.parametrize(("others", "restarts"), [(0, 2), (1, 1), (2, 1)])
def test_one_plan_is_followed_in_both_lanes_and_several_in_one_each(
    others: int, restarts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    monkeypatch.setattr(
        tasks, "reorder_in_lanes", lambda _, starts, *__, restarts, **___: given.append(restarts) or starts[0]
    )
    of, prepared = task(layered(), deepest=0), Prepared(layered())
    search = Search(prepared.evaluator, 1)
    search.offer(prepared.evaluator.labels(Label.KEEP))
    assert search.lowest is not None
    known = Known(prepared, None, (search.lowest,))
    of._lower([known] * (1 + others))
    assert given == [restarts]


@pytest.mark.parametrize(("share", "ops", "there"), [(0.97, 99, True), (0.98, 99, False), (0.98, 100, True)])
def test_an_order_of_hardly_a_lower_floor_is_not_tried_on_large_graphs(
    share: float, ops: int, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepareds, "_LOW_OPS", ops)
    prepared = Prepared(layered())
    low = prepared.low(lambda: False)
    assert low is not None
    nbytes = int(prepared.problem.floor_of_order.nbytes * share)
    monkeypatch.setitem(vars(low[1].problem), "floor_of_order", Floor(nbytes, "", ()))
    assert (prepared.low(lambda: False) is not None) is there


def test_lowering_ends_at_the_budget() -> None:
    evaluator = Evaluator(layered())
    lowest = Search(evaluator, 1, effort=SHORT)
    lowest.offer(evaluator.labels(Label.DROP))
    lower_further(lowest)
    assert lowest.lowest is not None
    budget = lowest.lowest.found.peak_nbytes + 10
    search = Search(evaluator, budget, effort=SHORT)
    search.offer(evaluator.labels(Label.DROP))
    lower_further(search)
    assert search.lowest is not None
    assert lowest.lowest.found.peak_nbytes < search.lowest.found.peak_nbytes <= budget


class Lowest:
    """Stands for the search under each order, by its peak: the default order's, then those of others of such floors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, peaks: list[int], floors: list[int]) -> None:
        self.asked: list[int] = []
        self.task = task(layered(1, 40, 5), lowerings=0, deepest=0)
        prepared = [self.task.prepared, *(Prepared(layered(1, 40, 5)) for _ in floors)]
        for one, floor in zip(prepared[1:], floors, strict=True):
            one.problem.__dict__["floor_of_order"] = Floor(floor, "", ())
        orders = [Orders((number,), ()) for number in range(len(floors))]
        monkeypatch.setattr(Task, "variants", lambda _: list(zip(prepared, [None, *orders], strict=True)))
        monkeypatch.setattr(Task, "_lower", lambda _, found: (found[0], False))
        self._numbers, self._peaks = {id(one): number for number, one in enumerate(prepared)}, peaks
        monkeypatch.setattr(tasks, "lowest_of", self._lowest_of)

    def _lowest_of(self, prepared: Prepared, _: Search) -> tuple[tuple[Candidate, ...], bool]:
        number = self._numbers[id(prepared)]
        self.asked.append(number)
        found = prepared.evaluator.evaluate(prepared.evaluator.labels(Label.KEEP))
        sequence = np.zeros(0, dtype=np.int64)
        return (Candidate(sequence, found._replace(peak_nbytes=self._peaks[number])),), False

    def found(self) -> list[int]:
        return [plans.peak_nbytes for plans in self.task.lowest()[0]]


def test_the_plans_of_all_orders_are_found_the_default_ones_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Lowest(monkeypatch, [700, 900, 800], [500, 500]).found() == [700, 900, 800]


def test_an_order_that_cannot_have_as_low_a_plan_as_the_default_one_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Lowest(monkeypatch, [700, 900, 800], [701, 700]).found() == [700, 800]


def test_an_order_that_cannot_have_as_low_a_plan_as_one_before_is_not_planned_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = Lowest(monkeypatch, [700, 600, 800], [500, 601])
    search.found()
    assert sorted(search.asked) == [0, 1]


def test_a_search_under_another_order_that_was_cut_short_ends_that_under_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = Lowest(monkeypatch, [700, 600, 500], [500, 500])
    lowest_of = search._lowest_of
    monkeypatch.setattr(tasks, "lowest_of", lambda prepared, of: (lowest_of(prepared, of)[0], True))
    found, stopped = search.task.lowest()
    assert (len(found), stopped, sorted(search.asked)) == (2, True, [0, 1])


def test_where_another_order_alone_was_cut_short_the_whole_search_was(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Lowest(monkeypatch, [700, 600], [500])
    lowest_of, default = search._lowest_of, search.task.prepared
    monkeypatch.setattr(tasks, "lowest_of", lambda prepared, of: (lowest_of(prepared, of)[0], prepared is not default))
    assert search.task.lowest()[1]


def test_where_the_search_under_the_default_orders_was_cut_short_those_under_others_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search, ended = Lowest(monkeypatch, [700, 600], [500]), list[bool]()
    lowest_of, default = search._lowest_of, search.task.prepared

    def cut_short(prepared: Prepared, of: Search) -> tuple[tuple[Candidate, ...], bool]:
        until = time.monotonic() + 10
        while prepared is not default and not of.out_of_time() and time.monotonic() < until:
            time.sleep(0.01)
        ended.append(of.stopped_early)
        return lowest_of(prepared, of)[0], True

    monkeypatch.setattr(tasks, "lowest_of", cut_short)
    search.found()
    assert ended == [False, True]


def test_a_stop_while_other_orders_are_looked_for_is_seen_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Lowest(monkeypatch, [700], [])
    search.task = replace(search.task, stop=lambda: True)

    def variants(of: Task) -> list[tuple[Prepared, Orders | None]]:
        until = time.monotonic() + 10
        while not of._late()() and time.monotonic() < until:
            time.sleep(0.01)
        return [(search.task.prepared, None)]

    monkeypatch.setattr(Task, "variants", variants)
    assert search.task.lowest()[1]


def test_two_orders_are_planned_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=60)
    search = Lowest(monkeypatch, [700, 600], [500])
    lowest_of = search._lowest_of

    def meeting(prepared: Prepared, of: Search) -> tuple[tuple[Candidate, ...], bool]:
        both.wait()
        return lowest_of(prepared, of)

    monkeypatch.setattr(tasks, "lowest_of", meeting)
    assert search.found() == [700, 600]


def test_an_error_under_another_order_is_one_of_the_whole_search(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Lowest(monkeypatch, [700, 600], [500])
    monkeypatch.setattr(Task, "variants", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        search.found()


def test_an_interrupt_under_the_default_order_ends_the_search_under_others(monkeypatch: pytest.MonkeyPatch) -> None:
    search, begun, ended = Lowest(monkeypatch, [700, 600], [500]), threading.Event(), list[bool]()

    def lowest_of(prepared: Prepared, of: Search) -> tuple[tuple[Candidate, ...], bool]:
        if prepared is search.task.prepared:
            assert begun.wait(60)
            raise KeyboardInterrupt
        begun.set()
        until = time.monotonic() + 60
        while not of.out_of_time() and time.monotonic() < until:
            time.sleep(0.01)
        ended.append(of.stopped_early)
        return search._lowest_of(prepared, of)

    monkeypatch.setattr(tasks, "lowest_of", lowest_of)
    with pytest.raises(KeyboardInterrupt):
        search.found()
    assert ended == [True]


def test_progress_is_told_by_the_search_under_the_default_order_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    search = Lowest(monkeypatch, [700, 600], [500])
    search.task = replace(search.task, progress=lambda *_: None)
    lowest_of = search._lowest_of

    def noting(prepared: Prepared, of: Search) -> tuple[tuple[Candidate, ...], bool]:
        told.append((prepared is search.task.prepared) == (of.progress is not None))
        return lowest_of(prepared, of)

    monkeypatch.setattr(tasks, "lowest_of", noting)
    search.found()
    assert told == [True, True]


class TestSpared:
    """What is spared on graphs so large that the holds get less than the effort's work."""

    def lowered(
        self, monkeypatch: pytest.MonkeyPatch, ops: int, *, reordered: bool = False, **changes: bool
    ) -> list[str]:
        done: list[str] = []
        monkeypatch.setattr(lower_peaks, "_labels", lambda *_: done.append("labels"))
        monkeypatch.setattr(lower_peaks, "_holds", lambda *_: done.append("holds"))
        monkeypatch.setattr(Others, "_make_greedy", lambda _: done.append("others"))
        problem = layered(1, ops, 8)
        prepared = Prepared(replace(problem, reorders=problem) if reordered else problem)
        search = Search(prepared.evaluator, 1, effort=replace(SHORT, **changes))
        lower_peaks.lower_peak(search, prepared)
        return sorted(done)

    def test_a_small_graph_gets_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.lowered(monkeypatch, 100, reordered=True) == ["holds", "labels", "others"]

    def test_no_labels_are_annealed_on_a_large_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.lowered(monkeypatch, 400) == ["holds", "others"]

    def test_the_other_strategies_are_not_asked_under_other_orders(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.lowered(monkeypatch, 400, reordered=True) == ["holds"]

    def test_a_thorough_effort_spares_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        done = self.lowered(monkeypatch, 500, reordered=True, thorough=True)
        assert done == ["holds", "labels", "others"]


def test_what_was_found_once_is_not_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = Prepared(layered(1, 40, 5))
    first = smallest_peak(prepared)
    monkeypatch.setattr(tasks, "reorder_in_lanes", None)
    assert smallest_peak(prepared) == first


def test_a_search_that_is_stopped_is_not_remembered() -> None:
    prepared = Prepared(layered(1, 40, 5))
    smallest_peak(prepared, stop=lambda: True)
    assert prepared.lowered == {}


def test_the_floor_is_known_before_two_threads_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    search, known = Lowest(monkeypatch, [700, 600], [500]), list[bool]()
    variants = Task.variants
    monkeypatch.setattr(
        Task, "variants", lambda of: known.append("_least_floor" in vars(of.prepared.problem)) or variants(of)
    )
    search.found()
    assert known == [True]
