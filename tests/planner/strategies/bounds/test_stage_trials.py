"""Which place becomes a stage: the most promising first, each on trial, the next where that one is not worth it."""

from __future__ import annotations

from math import inf

import pytest
from ogc_plan.planner.strategies.integers.cp_sat import Minimum
from ogc_plan.planner.strategies.integers.stage_trials import Place, StageTrials


def solved(bound_ns: int, work: float) -> Minimum:
    return Minimum(bound_ns, None, True, work)


def unsolved(work: float) -> Minimum:
    return Minimum(0, None, False, work)


def on_trial(bound_ns: int = 0, work: float = 1.0) -> StageTrials:
    """Stage 7 is, after a program of that bound and work was kept; 5 comes next."""
    choice = StageTrials()
    choice.keep(solved(bound_ns, work))
    choice.offer({5: 8.0, 7: 9.0})
    return choice


def test_the_most_promising_place_is_on_trial() -> None:
    choice = StageTrials()
    assert (choice.offer({3: 1.0, (4, 2): 6.0, 5: 2.0}), choice.trial) == ((4, 2), (4, 2))


def test_of_several_that_promise_the_same_the_first_is_chosen() -> None:
    assert StageTrials().offer({9: 2.0, 3: 2.0}) == 9


def test_one_that_leaves_no_point_comes_first_of_all() -> None:
    assert StageTrials().offer({9: 2.0, 3: inf}) == 3


def test_one_that_fails_is_replaced_by_the_next_on_trial() -> None:
    choice = on_trial()
    assert (choice.retire(unsolved(6.0)), choice.trial) == (5, 5)


def test_where_all_fail_the_one_that_told_most_is_kept_with_what_its_program_came_to() -> None:
    choice = StageTrials()
    choice.offer({3: 9.0, 5: 8.0, 7: 7.0})
    told = [choice.retire(found) for found in (solved(3, 1.0), solved(4, 2.0), unsolved(6.0))]
    assert (told, choice.trial, choice.failed[5]) == ([5, 7, 5], None, solved(4, 2.0))


def test_where_none_of_them_was_solved_the_first_is_tried_for_good() -> None:
    choice = on_trial()
    assert [choice.retire(unsolved(6.0)), choice.retire(unsolved(6.0)), choice.trial] == [5, 7, None]


def test_one_that_promises_hardly_anything_is_not_tried() -> None:
    choice = StageTrials()
    choice.offer({3: 100.0, 5: 9.0, 7: 11.0, 9: inf})
    assert [choice.retire(solved(1, 1.0)) for _ in range(3)] == [3, 7, 9]


def test_one_that_failed_is_not_tried_again_while_others_are_left() -> None:
    choice = on_trial()
    choice.retire(unsolved(6.0))
    choice.keep(solved(5, 1.0))
    assert choice.offer({7: 100.0, 3: 1.0}) == 3


def test_where_all_have_failed_the_best_is_on_trial_anew() -> None:
    choice = on_trial()
    choice.retire(unsolved(6.0))
    choice.keep(solved(5, 1.0))
    assert (choice.offer({7: 9.0}), choice.trial, choice.failed) == (7, 7, {})


def test_without_a_trial_a_program_may_take_all_work() -> None:
    assert StageTrials().most(1000.0) == 1000.0


@pytest.mark.parametrize(("took", "most"), [(0.1, 6.0), (10.0, 40.0), (100.0, 50.0)])
def test_on_trial_it_may_take_four_times_as_much_as_before_and_six_units_at_least(took: float, most: float) -> None:
    assert on_trial(work=took).most(50.0) == most


@pytest.mark.parametrize(
    ("found", "given", "fails"),
    [
        (unsolved(4.0), 4.0, True),
        (unsolved(9.0), 9.0, False),  # that was all there was
        (solved(109, 5.0), 5.0, True),  # 9 of a gap of 100
        (solved(111, 5.0), 5.0, False),
        (solved(100, 1.9), 5.0, False),  # as easy as before
        (solved(100, 5.0), 9.0, True),
    ],
)
def test_a_place_fails_that_takes_long_and_tells_little(found: Minimum, given: float, fails: bool) -> None:
    assert on_trial(bound_ns=100).fails(found, 200, cut_short=given < 9.0) == fails


def test_what_takes_hardly_any_work_is_easy_whatever_it_took_before() -> None:
    assert not on_trial(bound_ns=100, work=0.01).fails(solved(100, 0.29), 200, cut_short=True)


def test_what_is_not_on_trial_does_not_fail() -> None:
    assert not StageTrials().fails(unsolved(1.0), 200, cut_short=True)


def test_a_place_kept_is_no_longer_on_trial() -> None:
    choice = on_trial()
    kept: Place | None = choice.trial
    choice.keep(solved(150, 2.0))
    assert (kept, choice.trial) == (7, None)
