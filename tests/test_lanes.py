"""Annealing in lanes: the best of all, whichever ends first; what ends one lane ends the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from ogc_plan.planner.problem import Scope, build_problem
from ogc_plan.planner.strategies.anneal import Annealer
from ogc_plan.planner.strategies.anneal_holds import HoldAnnealer
from ogc_plan.planner.strategies.effort import EFFORTS
from ogc_plan.planner.strategies.evaluate import Evaluator, Labels
from ogc_plan.planner.strategies.improve import improve_holds, improve_labels
from ogc_plan.planner.strategies.labels import Label
from ogc_plan.planner.strategies.lanes import LANES, annealers_of, in_lanes
from ogc_plan.planner.strategies.search import Search

from tests.builders import chain

Work = Callable[[Search, Annealer, int], None]


def begun(budget_nbytes: int = 150) -> Search:
    """A search that knows the plan which recomputes everything."""
    graph, costs = chain(12, nbytes=10, forward_ns=5)
    search = Search(Evaluator(build_problem(graph, costs, Scope.ACTIVATIONS)), budget_nbytes, effort=EFFORTS["default"])
    search.offer(search.evaluator.labels(Label.DROP))
    return search


def keeping(search: Search, count: int) -> Labels:
    """The first ``count`` storages that may be kept or not, kept."""
    labels = search.evaluator.labels(Label.DROP)
    labels[np.flatnonzero(~search.evaluator.decided)[:count]] = Label.KEEP
    return labels


def cost_after(work: Work) -> int:
    search = begun()
    in_lanes(search, annealers_of(Annealer, search), work)
    assert search.best is not None
    return search.best.found.recompute_ns


@pytest.mark.parametrize("better", range(LANES))
def test_the_best_of_all_lanes_is_kept(better: int) -> None:
    alone = begun()
    expected = alone.offer(keeping(alone, 5)).recompute_ns
    assert cost_after(lambda lane, _, n: lane.offer(keeping(lane, 5 if n == better else 2)) and None) == expected


@pytest.mark.parametrize("slow", range(LANES))
def test_no_lane_sees_what_another_has_found(slow: int) -> None:
    seen: dict[int, int] = {}

    def work(lane: Search, _: Annealer, number: int) -> None:
        time.sleep(0.05 * (number == slow))
        assert lane.best is not None
        seen[number] = lane.best.found.recompute_ns
        lane.offer(keeping(lane, 3 + number))

    cost_after(work)
    assert len(set(seen.values())) == 1


def test_lanes_draw_different_random_numbers() -> None:
    states = [annealer.state.tolist() for annealer in annealers_of(Annealer, begun())]
    assert len({tuple(state) for state in states}) == LANES


def test_an_exception_in_the_first_lane_ends_the_others() -> None:
    ended = threading.Event()

    def work(lane: Search, _: Annealer, number: int) -> None:
        if number == 0:
            raise KeyboardInterrupt
        while not lane.out_of_time():
            time.sleep(0.001)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        cost_after(work)
    assert ended.is_set()


def test_an_exception_in_another_lane_comes_out() -> None:
    def work(_: Search, __: Annealer, number: int) -> None:
        if number:
            raise ArithmeticError(number)

    with pytest.raises(ArithmeticError):
        cost_after(work)


def test_a_lane_that_is_stopped_stops_the_search() -> None:
    search = begun()

    def work(lane: Search, _: Annealer, number: int) -> None:
        lane.stopped_early |= number == LANES - 1

    in_lanes(search, annealers_of(Annealer, search), work)
    assert search.stopped_early


def test_progress_is_told_in_the_thread_of_the_caller() -> None:
    threads: set[int] = set()
    search = begun()
    search.progress = lambda *_: threads.add(threading.get_ident())
    improve_labels(search, annealers_of(Annealer, search))
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("kind", [Annealer, HoldAnnealer])
def test_the_outcome_is_the_same_each_time(kind: type) -> None:
    found = set()
    for _ in range(5):
        search = begun()
        improve = improve_labels if kind is Annealer else improve_holds
        improve(search, annealers_of(kind, search), share=0.01)
        assert search.best is not None
        found.add(tuple(search.best.sequence.tolist()))
    assert len(found) == 1
