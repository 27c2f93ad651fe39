"""The replay of generated code: what is held, taken, reused and freed."""

from __future__ import annotations

import pytest
from ogc_plan.adapters.inductor.forms import Call
from ogc_plan.adapters.inductor.lowering import Event, held_by_tuples
from ogc_plan.adapters.inductor.peak import replay
from torch import fx

CALL = Call(fx.Graph().placeholder("x"), ())


def peak(*events: Event, held: dict[str, int] | None = None, storage: dict[str, str] | None = None) -> tuple[int, int]:
    """Peak and end of a replay in which each library call takes 50 bytes."""
    found = replay(events, held or {}, lambda _: 50, storage or {})
    return found.peak_nbytes, found.end_nbytes


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ((Event("take", "a", 10), Event("free", "a"), Event("take", "b", 10)), (10, 10)),
        ((Event("take", "a", 10), Event("take", "b", 10), Event("free", "a")), (20, 10)),
        ((Event("take", "a", 10), Event("reuse", "a", other="b"), Event("free", "b")), (10, 0)),
        ((Event("call", "a", call=CALL), Event("take", "a", 10)), (60, 10)),
        ((Event("call", "a", call=CALL), Event("take", "a", 10), Event("free", "x"), Event("take", "b", 45)), (60, 55)),
    ],
    ids=["freed before", "freed after", "reused", "workspace", "workspace is over"],
)
def test_the_peak_is_that_of_the_lines(events: tuple[Event, ...], expected: tuple[int, int]) -> None:
    assert peak(*events) == expected


def test_views_of_one_storage_count_once_and_go_with_the_last() -> None:
    found = peak(Event("free", "a"), Event("take", "c", 5), held={"a": 10, "b": 10}, storage={"a": "s", "b": "s"})
    assert found == (15, 15)


def test_a_buffer_named_like_a_storage_of_the_forward_is_another() -> None:
    """Buffers of forward and backward are numbered alike."""
    events = Event("take", "s", 10), Event("free", "s")
    assert peak(*events, held={"a": 10}, storage={"a": "s"}) == (20, 10)


def test_a_result_is_held_as_long_as_the_tuple_of_all_results() -> None:
    events = [Event("free", "part"), Event("take", "other", 1), Event("free", "call"), Event("free", "other")]
    assert [event.name for event in held_by_tuples(events, {"part": "call"})] == ["other", "call", "part", "other"]
