"""When a search must end: at a deadline, at a stop, and never for another reason."""

from __future__ import annotations

import threading
import time
from _thread import interrupt_main
from itertools import chain, repeat

import pytest
from ogc_plan.planner.limits import NO_LIMITS, Limits


def test_without_limits_a_search_is_never_out_of_time() -> None:
    assert (NO_LIMITS.out_of_time(), NO_LIMITS.remaining_s()) == (False, None)


@pytest.mark.parametrize(("time_limit_s", "late"), [(-1.0, True), (60.0, False), (None, False)])
def test_a_search_ends_at_its_deadline(time_limit_s: float | None, late: bool) -> None:
    assert NO_LIMITS.with_deadline(time_limit_s).out_of_time() is late


def test_the_remaining_time_is_the_time_to_the_deadline() -> None:
    assert NO_LIMITS.with_deadline(60.0).remaining_s() == pytest.approx(60.0, abs=10.0)


@pytest.mark.parametrize("stops", [(True, False), (False, True)])
def test_either_of_two_stops_ends_the_search(stops: tuple[bool, bool]) -> None:
    first, second = stops
    assert Limits(stop=lambda: first).stopping_with(lambda: second).out_of_time()


def test_a_stop_that_was_true_once_stays_true_when_latched() -> None:
    answers = chain([False, True], repeat(False))
    limits = Limits(stop=lambda: next(answers)).latched()
    assert [limits.out_of_time() for _ in range(3)] == [False, True, True]


@pytest.mark.parametrize("told", [True, False])
def test_progress_is_reported_unless_it_is_taken_away(told: bool) -> None:
    lines: list[tuple[str, int | None, int]] = []
    limits = Limits(progress=lambda *line: lines.append(line))
    (limits if told else limits.without_progress()).say("planning", 3, 2)
    assert lines == ([("planning", 3, 2)] if told else [])


def test_watched_work_returns_its_result() -> None:
    assert NO_LIMITS.watch(lambda: 7, lambda: None) == 7


def test_watched_work_that_outlasts_the_limits_is_interrupted() -> None:
    interrupted = threading.Event()
    assert Limits(stop=lambda: True).watch(lambda: interrupted.wait(60), interrupted.set)


@pytest.mark.usefixtures("usual_interrupts")
def test_an_interrupt_of_the_caller_interrupts_watched_work() -> None:
    interrupted = threading.Event()

    def work() -> bool:
        time.sleep(0.2)  # until the caller waits
        interrupt_main()
        return interrupted.wait(60)

    with pytest.raises(KeyboardInterrupt):
        NO_LIMITS.watch(work, interrupted.set)
    assert interrupted.is_set()
