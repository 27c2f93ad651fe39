"""How much work an effort does on graphs of different sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ogc_plan.planner.strategies.optimal.effort import EFFORTS

DEFAULT, HIGH = EFFORTS["default"], EFFORTS["high"]
SIZES = [100, 300, 600, 700, 701, 1_500]


def test_larger_graphs_get_fewer_iterations_until_their_plans_may_take_longer() -> None:
    assert [round(DEFAULT.share_of(ops), 2) for ops in SIZES] == [1.0, 1.0, 0.5, 0.43, 1.0, 0.6]


def test_integers_are_searched_less_on_larger_graphs_but_never_less_than_a_share() -> None:
    made = replace(DEFAULT, growing=1.0)
    assert [round(made.growing_on(ops), 2) for ops in [50, 160, *SIZES]] == [1.0, 0.5, 0.8, 0.3, 0.3, 0.3, 0.3, 0.3]


def test_linear_programs_of_graphs_whose_plans_may_take_longer_get_work_of_their_own() -> None:
    made = replace(DEFAULT, relaxing=1, patient=2)
    assert [made.relaxing_on(ops) for ops in SIZES] == [1, 1, 1, 1, 2, 2]


def test_orders_are_made_for_plans_more_often_where_they_may_take_longer() -> None:
    made = replace(DEFAULT, reorderings=2, reordered=1_500)
    assert [made.reorderings_on(ops) for ops in SIZES] == [2, 2, 2, 2, 6, 6]


def test_larger_graphs_get_fewer_iterations_in_each_round_that_lowers_the_peak() -> None:
    made = replace(DEFAULT, adapting=100)
    assert [made.lowering_on(ops) for ops in SIZES] == [100, 100, 50, 42, 42, 20]


def test_orders_are_made_for_plans_of_graphs_of_so_many_ops_at_most() -> None:
    made = replace(DEFAULT, reorderings=2, reordered=300)
    assert [made.reorderings_on(ops) for ops in (300, 301)] == [2, 0]


def test_a_thorough_effort_searches_integers_in_full_on_every_graph() -> None:
    assert {HIGH.growing_on(ops) for ops in SIZES} == {HIGH.growing}


def test_a_thorough_effort_has_no_more_patience_with_large_graphs_than_with_others() -> None:
    assert [round(HIGH.share_of(ops), 2) for ops in SIZES] == [1.0, 1.0, 0.62, 0.54, 0.53, 0.25]


@pytest.mark.parametrize("field", ["stages", "relaxing", "patient", "holds", "growing", "reordered"])
def test_a_later_solve_does_less_of_everything_that_takes_long(field: str) -> None:
    assert DEFAULT.again is not None
    assert getattr(DEFAULT.again, field) < getattr(DEFAULT, field)
