"""Work in threads: the same outcome whichever thread is slow, and no error or interrupt that is lost."""

from __future__ import annotations

import threading
import time

import pytest
from ogc_plan.planner.limits import NO_LIMITS, Limits
from ogc_plan.planner.problem import Problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.optimal.effort import EFFORTS
from ogc_plan.planner.strategies.optimal.improve import improve_retention
from ogc_plan.planner.strategies.optimal.incumbents import Incumbents
from ogc_plan.planner.strategies.optimal.parallel import THREADS, anneal_in_parallel, annealers, threads
from ogc_plan.planner.strategies.retention.annealer import RetentionAnnealer

from tests.graphs.problems import chain_problem, random_problem


def started(problem: Problem | None = None, limits: Limits = NO_LIMITS) -> Incumbents:
    """A search that knows the plan which recomputes everything, with a budget a little above its peak."""
    evaluator = Evaluator(problem or chain_problem(12))
    dropped = evaluator.evaluate(evaluator.labels(Label.DROP)).peak_nbytes
    incumbents = Incumbents(evaluator, dropped * 5 // 4, limits, EFFORTS["default"])
    incumbents.offer(evaluator.labels(Label.DROP))
    return incumbents


@pytest.mark.parametrize("failing", [0, THREADS - 1])
def test_an_error_in_one_thread_ends_the_others_and_is_raised(failing: int) -> None:
    def work(fork: Incumbents, _: RetentionAnnealer, number: int) -> None:
        if number == failing:
            raise ArithmeticError
        while number and not fork.out_of_time():
            time.sleep(0.001)

    with pytest.raises(ArithmeticError):
        anneal_in_parallel(incumbents := started(), annealers(incumbents), work)


@pytest.mark.parametrize("slow", [True, False])
def test_the_outcome_does_not_depend_on_which_thread_is_slow(slow: bool) -> None:
    caller = threading.get_ident()

    def outcome(limits: Limits) -> tuple[list[int], list[list[int]]]:
        incumbents = started(random_problem(5, 60, 60), limits)
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
