"""Work in threads: the same outcome whichever thread is slow, and no error or interrupt that is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from ogc_plan.planner.limits import NO_LIMITS, Limits
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator, Labels
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.optimal.effort import EFFORTS
from ogc_plan.planner.strategies.optimal.improve import improve_retention
from ogc_plan.planner.strategies.optimal.incumbents import Incumbents
from ogc_plan.planner.strategies.optimal.parallel import THREADS, anneal_in_parallel, annealers, threads, wait_for
from ogc_plan.planner.strategies.retention.annealer import RetentionAnnealer

from tests.graphs.builders import chain, random_graph

Work = Callable[[Incumbents, RetentionAnnealer, int], None]


def branching() -> Problem:
    """A random graph whose best plan no short search finds."""
    return build_problem(*random_graph(Random(5), 60), Scope.ACTIVATIONS)


def started(problem: Problem | None = None, limits: Limits = NO_LIMITS) -> Incumbents:
    """A search that knows the plan which recomputes everything, with a budget a little above its peak."""
    evaluator = Evaluator(problem or build_problem(*chain(12, nbytes=10, forward_ns=5), Scope.ACTIVATIONS))
    dropped = evaluator.evaluate(evaluator.labels(Label.DROP)).peak_nbytes
    incumbents = Incumbents(evaluator, dropped * 5 // 4, limits, EFFORTS["default"])
    incumbents.offer(evaluator.labels(Label.DROP))
    return incumbents


def keeping(incumbents: Incumbents, count: int) -> Labels:
    """The first ``count`` storages that may be kept or not, kept."""
    labels = incumbents.evaluator.labels(Label.DROP)
    labels[np.flatnonzero(~incumbents.evaluator.decided)[:count]] = Label.KEEP
    return labels


def cost_after(work: Work) -> int:
    incumbents = started()
    anneal_in_parallel(incumbents, annealers(incumbents), work)
    assert incumbents.best is not None
    return incumbents.best.found.recompute_ns


@pytest.mark.parametrize("better", range(THREADS))
def test_the_best_plan_of_all_threads_is_kept(better: int) -> None:
    alone = started()
    expected = alone.offer(keeping(alone, 5)).recompute_ns
    assert cost_after(lambda fork, _, n: fork.offer(keeping(fork, 5 if n == better else 2)) and None) == expected


@pytest.mark.parametrize("slow", range(THREADS))
def test_no_thread_sees_what_another_has_found(slow: int) -> None:
    seen: dict[int, int] = {}

    def work(fork: Incumbents, _: RetentionAnnealer, number: int) -> None:
        time.sleep(0.05 * (number == slow))
        assert fork.best is not None
        seen[number] = fork.best.found.recompute_ns
        fork.offer(keeping(fork, 3 + number))

    cost_after(work)
    assert len(set(seen.values())) == 1


def test_threads_draw_different_random_numbers() -> None:
    assert len({tuple(annealer.state.tolist()) for annealer in annealers(started())}) == THREADS


@pytest.mark.parametrize("failing", range(THREADS))
def test_an_error_in_one_thread_ends_the_others_and_is_raised(failing: int) -> None:
    def work(fork: Incumbents, _: RetentionAnnealer, number: int) -> None:
        if number == failing:
            raise ArithmeticError
        while number and not fork.out_of_time():
            time.sleep(0.001)

    with pytest.raises(ArithmeticError):
        cost_after(work)


def test_progress_is_reported_by_the_caller_alone() -> None:
    callers: set[int] = set()
    incumbents = started(limits=Limits(progress=lambda *_: callers.add(threading.get_ident())))
    improve_retention(incumbents, annealers(incumbents))
    assert callers == {threading.get_ident()}


@pytest.mark.parametrize("slow", [True, False])
def test_the_outcome_does_not_depend_on_which_thread_is_slow(slow: bool) -> None:
    caller = threading.get_ident()

    def outcome(limits: Limits) -> tuple[list[int], list[list[int]]]:
        incumbents = started(branching(), limits)
        each = annealers(incumbents)
        improve_retention(incumbents, each, share=0.002)
        assert incumbents.best is not None
        return incumbents.best.sequence.tolist(), [annealer.state.tolist() for annealer in each]

    def delay() -> bool:
        time.sleep(0.002 * ((threading.get_ident() == caller) is slow))
        return False

    assert outcome(Limits(stop=delay)) == outcome(NO_LIMITS)


def test_work_that_nobody_waits_for_is_cancelled_at_the_end() -> None:
    with threads(NO_LIMITS) as team:
        work = team.start(lambda: [time.sleep(0.001) for _ in iter(team.limits.out_of_time, True)])
    assert work.done()


def test_an_error_in_work_that_nobody_waits_for_is_raised() -> None:
    def leave_it() -> None:
        with threads(NO_LIMITS) as team:
            team.start(lambda: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        leave_it()


def test_work_that_waits_for_a_thread_is_never_begun_after_an_interrupt() -> None:
    begun: list[str] = []

    def interrupted() -> None:
        with threads(NO_LIMITS, 1) as team:
            team.start(lambda: [time.sleep(0.001) for _ in iter(team.limits.out_of_time, True)])
            team.start(begun.append, "the next")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert begun == []


def test_an_error_is_raised_while_other_work_goes_on() -> None:
    def waiting() -> None:
        with threads(NO_LIMITS) as team:
            wait_for([team.start(lambda: [time.sleep(0.001) for _ in iter(team.cancelled, True)]), team.start(fail)])

    def fail() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        waiting()
