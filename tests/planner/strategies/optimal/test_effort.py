"""How much work an effort does."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise

import pytest
from ogc_plan.planner.strategies.optimal.effort import EFFORTS, BoundEffort, Effort, OrderEffort, SearchEffort, share_of

PARTS = ("bound", "search", "orders")


def numbers(effort: Effort) -> dict[str, float]:
    return {
        f"{part}.{field.name}": getattr(getattr(effort, part), field.name)
        for part in PARTS
        for field in fields(getattr(effort, part))
    }


def test_three_efforts_are_at_most_35_numbers() -> None:
    assert len(EFFORTS) * sum(len(fields(part)) for part in (BoundEffort, SearchEffort, OrderEffort)) <= 35


@pytest.mark.parametrize("name", [name for name in numbers(EFFORTS["default"]) if name != "bound.accepted_gap"])
def test_a_higher_effort_does_no_less_of_anything(name: str) -> None:
    done = [numbers(EFFORTS[effort])[name] for effort in ("fast", "default", "high")]
    assert done == sorted(done)


def test_a_resumed_effort_does_no_more_of_anything_and_as_much_for_the_smallest_peak() -> None:
    default = EFFORTS["default"]
    before, after = numbers(default), numbers(default.resumed())
    assert all(after[name] <= before[name] for name in before)
    assert (default.resumed().search.peak_iterations, default.resumed().orders) == (
        default.search.peak_iterations,
        default.orders,
    )


def test_larger_graphs_get_a_smaller_share_without_a_jump() -> None:
    shares = [share_of(ops) for ops in range(1, 3_000)]
    assert (shares[0], shares == sorted(shares, reverse=True)) == (1.0, True)
    assert max(before - after for before, after in pairwise(shares)) < 0.01
