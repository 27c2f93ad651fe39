"""Placements: no overlap, never below the bound, the optimum on tiny cases, fixed items left where they are."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ogc_plan.planner.arena.check import check
from ogc_plan.planner.arena.interval import Interval, Placement, most_alive
from ogc_plan.planner.arena.placement import place
from ogc_plan.planner.errors import PlacementMismatchError
from ogc_plan.planner.limits import Limits

from tests.oracles.brute_placement import smallest_arena


@st.composite
def intervals(draw: st.DrawFn, *, most: int, most_nbytes: int = 1 << 20, events: int = 40) -> list[Interval]:
    items = []
    for _ in range(draw(st.integers(0, most))):
        begin = draw(st.integers(0, events - 1))
        items.append(Interval(draw(st.integers(0, most_nbytes)), begin, draw(st.integers(begin + 1, events))))
    return items


def with_obstacles(items: list[Interval], alignment: int) -> list[Interval]:
    """Every third item is fixed, each above the one before it."""
    found, top = [], 0
    for number, item in enumerate(items):
        fixed = number % 3 == 0
        found.append(replace(item, offset=top) if fixed else item)
        if fixed:
            top += -(-(item.nbytes + 3 * alignment) // alignment) * alignment
    return found


@settings(max_examples=150, deadline=None)
@given(intervals(most=25), st.sampled_from((1, 64, 512)), st.booleans())
def test_no_two_live_items_overlap_and_fixed_ones_stay(items: list[Interval], alignment: int, fix: bool) -> None:
    if fix:
        items = with_obstacles(items, alignment)
    placement = place(items, alignment=alignment)
    check(items, placement)
    assert all(offset % alignment == 0 for offset in placement.offsets)
    assert most_alive(items) <= placement.bound_nbytes <= placement.nbytes


@settings(max_examples=60, deadline=None)
@given(intervals(most=6, most_nbytes=12, events=7), st.sampled_from((1, 4)), st.booleans())
def test_few_items_get_the_smallest_arena(items: list[Interval], alignment: int, fix: bool) -> None:
    items = [item for item in items if item.nbytes]
    if fix:
        items = with_obstacles(items, alignment)
    placement = place(items, alignment=alignment)
    smallest = smallest_arena(items, alignment)
    assert placement.nbytes == smallest
    assert placement.bound_nbytes <= smallest


def test_the_exact_solver_proves_a_size_above_the_bytes_alive() -> None:
    """No item of 3 bytes goes below one that is fixed at 2."""
    items = [Interval(1, 0, 2, 2), Interval(3, 1, 3), Interval(2, 1, 2)]
    placement = place(items, alignment=1)
    assert most_alive(items) == 6
    assert placement.nbytes == placement.bound_nbytes == 6
    items = [*items[:2], Interval(2, 0, 1)]
    placement = place(items, alignment=1)
    assert most_alive(items) == 4
    assert placement.nbytes == placement.bound_nbytes == 6


def test_the_same_items_get_the_same_offsets() -> None:
    rng = Random(5)
    items = [Interval(rng.randrange(1 << 20), b := rng.randrange(40), b + rng.randint(1, 12)) for _ in range(60)]
    assert place(items) == place(items)


def test_ten_thousand_items_take_a_bounded_amount_of_work() -> None:
    rng = Random(7)
    items = [
        Interval(rng.randrange(1, 1 << 24), b := rng.randrange(20_000), b + rng.randint(1, 900)) for _ in range(10_000)
    ]
    placement = place(items)
    check(items, placement)
    assert placement.above_bound < 0.12


def test_a_stop_ends_the_search_with_a_placement() -> None:
    rng = Random(9)
    items = [Interval(rng.randrange(1, 1 << 20), b := rng.randrange(300), b + rng.randint(1, 60)) for _ in range(400)]
    check(items, place(items, limits=Limits(stop=lambda: True)))


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (Interval(4, 3, 3), "item 0 has 4 bytes from event 3 to 3"),
        (Interval(-1, 0, 1), "item 0 has -1 bytes"),
        (Interval(4, 0, 1, 100), "fixed at 100, which is no multiple of 512"),
    ],
)
def test_items_that_make_no_sense_are_refused(item: Interval, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        place([item])


def test_fixed_items_over_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="items 0 and 2 are fixed over each other"):
        place([Interval(600, 0, 2, 0), Interval(1, 0, 2), Interval(5, 1, 3, 512)])


@pytest.mark.parametrize(
    ("offsets", "nbytes", "message"),
    [
        ((0, 512), 1536, "items 0 and 1 are alive together and overlap"),
        ((0, 1024), 1536, "item 1 reaches from 1024 to 1624, outside an arena of 1536 bytes"),
        ((0, 1000), 2048, "item 1 is at 1000, no multiple of 512"),
        ((0,), 2048, "a placement of 1 items is given for 2"),
        ((512, 2048), 4096, "item 0 is at 512, but fixed at 0"),
    ],
)
def test_the_check_names_what_is_wrong(offsets: tuple[int, ...], nbytes: int, message: str) -> None:
    items = [Interval(600, 0, 2, 0), Interval(600, 1, 3)]
    with pytest.raises(PlacementMismatchError, match=message):
        check(items, Placement(offsets, nbytes, 0))


def test_an_item_may_follow_another_at_the_same_place() -> None:
    items = [Interval(600, 0, 2), Interval(600, 2, 3)]
    check(items, Placement((0, 0), 1024, 0))
