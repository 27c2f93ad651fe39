"""Annealing in lanes: the best of all, whichever ends first; what ends one lane ends the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluation, Evaluator, Labels
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.labelling.annealer import Annealer
from ogc_plan.planner.strategies.optimal.effort import EFFORTS
from ogc_plan.planner.strategies.optimal.improve import improve_holds, improve_labels
from ogc_plan.planner.strategies.optimal.incumbents import Search
from ogc_plan.planner.strategies.optimal.parallel import LANES, annealers_of, in_lanes
from ogc_plan.planner.strategies.retention.annealer import HoldAnnealer

from tests.graphs.builders import chain, random_graph

Work = Callable[[Search, Annealer, int], None]


def branching() -> Problem:
    """A random graph whose best plan no short search finds."""
    graph, costs = random_graph(Random(5), 60)
    return build_problem(graph, costs, Scope.ACTIVATIONS)


def begun(problem: Problem | None = None) -> Search:
    """A search that knows the plan which recomputes everything, and may hold as much and a little more."""
    graph, costs = chain(12, nbytes=10, forward_ns=5)
    evaluator = Evaluator(problem or build_problem(graph, costs, Scope.ACTIVATIONS))
    dropped = evaluator.evaluate(evaluator.labels(Label.DROP)).peak_nbytes
    search = Search(evaluator, dropped * 5 // 4, progress=lambda *_: None, effort=EFFORTS["default"])
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


def label_iterations(monkeypatch: pytest.MonkeyPatch, gap: float, *, effort: str = "default", holds: bool) -> int:
    """How many iterations of label annealing a search does at a gap, over all lanes."""
    search, done = begun(problem=branching()), []
    search.effort = EFFORTS[effort]
    assert search.best is not None
    search.bound_ns = search.best.found.recompute_ns - int(gap * search.problem.store_all_ns)

    def run(_: Annealer, start: Labels, __: int, iterations: int, **___: object) -> tuple[Labels, Evaluation]:
        done.append(iterations)
        return start, search.evaluator.evaluate(start)

    monkeypatch.setattr(Annealer, "run", run)
    improve_labels(search, annealers_of(Annealer, search), holds_follow=holds)
    return sum(done)


def test_labels_are_left_alone_where_holds_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert label_iterations(monkeypatch, 0.1, holds=True) == 0


@pytest.mark.parametrize("holds", [False, True])
def test_labels_are_annealed_in_full_where_nothing_follows_or_the_effort_is_high(
    holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    effort = "high" if holds else "default"
    assert label_iterations(monkeypatch, 0.004, effort=effort, holds=holds) > 10_000


def test_a_user_who_stops_the_search_while_the_first_lane_waits_is_heard() -> None:
    search, pressed = begun(), threading.Event()
    search.stop = pressed.is_set

    def work(lane: Search, _: Annealer, number: int) -> None:
        if number == 0:
            return
        pressed.set()
        while not lane.out_of_time():
            time.sleep(0.001)

    in_lanes(search, annealers_of(Annealer, search), work)
    assert search.stopped_early


@pytest.mark.parametrize("slow", range(LANES))
@pytest.mark.parametrize("kind", [Annealer, HoldAnnealer])
def test_the_outcome_does_not_depend_on_which_lane_is_slow(
    kind: type, slow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    improve = improve_labels if kind is Annealer else improve_holds

    def outcome() -> tuple[list[int], list[list[int]]]:
        search = begun(problem=branching())
        annealers = annealers_of(kind, search)
        improve(search, annealers, share=0.002)
        assert search.best is not None
        return search.best.sequence.tolist(), [annealer.state.tolist() for annealer in annealers]

    expected = outcome()
    asked = Search.out_of_time

    def late(lane: Search) -> bool:
        time.sleep(0.002 * ((lane.progress is None) == bool(slow)))
        return asked(lane)

    monkeypatch.setattr(Search, "out_of_time", late)
    assert outcome() == expected
